// A small render function. `h` describes an element, `render` makes the DOM equal to the description.
//
// Every string becomes a text node and every attribute is set as an attribute, so nothing that comes from the server is
// ever parsed as HTML. Elements with a `key` keep their identity (focus, selection, scroll position) when their
// siblings change.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "selected", "disabled", "open", "scrollTop"]);
const described = new WeakMap(); // node → the description it was made from
const listeners = new WeakMap(); // node → {event: function}
let fresh = []; // [callback, node] of the nodes that were created in this render

// An element: tag, properties and children. `tag` may have classes: "div.card.wide".
//   onclick, oninput, …  listeners        class   string or list; false values are left out
//   key                  identity         style   object of CSS properties (custom properties included)
//   created, updated     called with the node after it was created and is part of the page, or after it was changed
export function h(tag, properties, ...children) {
  if (properties === null || typeof properties !== "object" || Array.isArray(properties) || properties.tag) {
    children.unshift(properties);
    properties = {};
  }
  const [name, ...classes] = tag.split(".");
  const given = properties.class;
  const all = classes.concat(Array.isArray(given) ? given.filter(Boolean) : given || []);
  return {
    tag: name,
    key: properties.key,
    properties: all.length ? { ...properties, class: all.join(" ") } : properties,
    children: flat(children),
  };
}

function flat(children, out = []) {
  for (const child of children) {
    if (Array.isArray(child)) flat(child, out);
    else if (child !== null && child !== undefined && child !== false && child !== true) {
      out.push(child.tag ? child : String(child));
    }
  }
  return out;
}

// Make the children of a node equal to these descriptions.
export function render(parent, ...children) {
  patchChildren(parent, flat(children), parent.namespaceURI === SVG);
  const all = fresh;
  fresh = [];
  for (const [created, node] of all) created(node);
}

function patchChildren(parent, wanted, inSvg) {
  const keyed = new Map();
  const rest = [];
  for (const node of parent.childNodes) {
    const before = described.get(node);
    if (before && before.key !== undefined) keyed.set(before.key, node);
    else rest.push(node);
  }
  let used = 0;
  let place = parent.firstChild;
  for (const each of wanted) {
    let node = null;
    if (each.key !== undefined) {
      node = keyed.get(each.key) || null;
      if (node) keyed.delete(each.key);
    } else if (used < rest.length) {
      node = rest[used++];
    }
    const after = patch(node, each, inSvg);
    if (node && after !== node && node.parentNode === parent) {
      if (place === node) place = node.nextSibling;
      node.remove();
    }
    if (after === place) place = place.nextSibling;
    else parent.insertBefore(after, place);
  }
  for (const node of rest.slice(used)) node.remove();
  for (const node of keyed.values()) node.remove();
}

// The node itself, changed, or a new one if it cannot become what is wanted.
function patch(node, wanted, inSvg) {
  if (typeof wanted === "string") {
    if (node && node.nodeType === Node.TEXT_NODE) {
      if (node.data !== wanted) node.data = wanted;
      return node;
    }
    return document.createTextNode(wanted);
  }
  const isSvg = inSvg || wanted.tag === "svg";
  const before = node && described.get(node);
  if (!before || before.tag !== wanted.tag || before.key !== wanted.key) return create(wanted, isSvg);
  patchProperties(node, before.properties, wanted.properties);
  described.set(node, wanted);
  patchChildren(node, wanted.children, isSvg);
  if (wanted.properties.updated) wanted.properties.updated(node);
  return node;
}

function create(wanted, isSvg) {
  const node = isSvg ? document.createElementNS(SVG, wanted.tag) : document.createElement(wanted.tag);
  described.set(node, wanted);
  patchChildren(node, wanted.children, isSvg && wanted.tag !== "foreignObject");
  patchProperties(node, {}, wanted.properties);
  if (wanted.properties.created) fresh.push([wanted.properties.created, node]);
  return node;
}

function patchProperties(node, before, after) {
  for (const name in before) if (!(name in after)) set(node, name, undefined, before[name]);
  for (const name in after) {
    // A field is brought back to its description, but not while the user types in it.
    const isReset = PROPERTIES.has(name) && node !== document.activeElement;
    if (after[name] !== before[name] || isReset) set(node, name, after[name], before[name]);
  }
}

function set(node, name, value, before) {
  if (name === "key" || name === "created" || name === "updated") return;
  if (name.startsWith("on")) return listen(node, name.slice(2), value);
  if (name === "style") return restyle(node, value || {}, before || {});
  if (PROPERTIES.has(name)) {
    const wanted = value === undefined ? "" : value;
    if (node[name] !== wanted) node[name] = wanted;
    return;
  }
  if (value === undefined || value === null || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
}

// The policy of the page refuses style attributes; properties of `style` are allowed.
function restyle(node, wanted, before) {
  for (const name in before) if (!(name in wanted)) node.style.removeProperty(name);
  for (const name in wanted) if (wanted[name] !== before[name]) node.style.setProperty(name, wanted[name]);
}

function listen(node, event, callback) {
  let own = listeners.get(node);
  if (!own) listeners.set(node, (own = {}));
  if (!(event in own)) node.addEventListener(event, (happened) => own[event] && own[event](happened));
  own[event] = callback;
}
