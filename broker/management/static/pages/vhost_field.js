// The choice of a virtual host in a form, filled as soon as the member has named them.

import { h, replace } from "../dom.js";
import { get, path } from "../api.js";
import { field } from "../forms.js";

export function vhostField() {
  const node = field("Virtual host", "vhost", { options: ["/"] });
  const choice = node.querySelector("select");
  get(path("vhosts")).then((found) => {
    const held = choice.value;
    replace(choice, found.map((one) => h("option", { value: one.name, selected: one.name === held }, one.name)));
  }).catch(() => { /* the list of the page says what is wrong */ });
  return node;
}
