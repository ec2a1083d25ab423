// The text that the page for submitting starts with: a new one, or a job that is submitted again.

const KEY = "draft";

export const keepDraft = (text) => sessionStorage.setItem(KEY, text);
export const keptDraft = () => sessionStorage.getItem(KEY);
