"""Modules of the dashboard that the server joins to one script."""

import pytest

from phalanx.dashboard.scripts import script

MODULES = {
    "js/main.js": 'import { page } from "./pages/page.js";\nimport { h } from "./dom.js";\nh();\n',
    "js/pages/page.js": 'import { h, render } from "../dom.js";\nexport async function page() {}\n',
    "js/dom.js": "export const h = 1;\nexport class Node {}\nexport function render() {}\n",
    "js/worker.js": "onmessage = () => {};\n",
}


def test_a_script_has_each_module_once_and_after_those_that_it_imports() -> None:
    assert (
        script("js/main.js", MODULES)
        == """const modules = {};
modules["js/dom.js"] = (() => {
const h = 1;
class Node {}
function render() {}
return { h, Node, render };
})();
modules["js/pages/page.js"] = (() => {
const { h, render } = modules["js/dom.js"];
async function page() {}
return { page };
})();
modules["js/main.js"] = (() => {
const { page } = modules["js/pages/page.js"];
const { h } = modules["js/dom.js"];
h();
return {  };
})();"""
    )
    assert script("js/worker.js", MODULES) == MODULES["js/worker.js"]


@pytest.mark.parametrize(
    "line", ['import "./dom.js";', 'import * as dom from "./dom.js";', "export default h;"]
)
def test_an_import_or_export_of_another_form_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="has an import or export of another form"):
        script("js/main.js", {**MODULES, "js/main.js": f"{line}\n"})
