// What is wrong with the page as it stands, by the rules of WCAG that a program can check.
(() => {
  const faults = [];
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const rgba = (text) => (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = rgba(getComputedStyle(one).backgroundColor);
      if (found[3] !== 0) return found.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const shown = [...document.body.querySelectorAll("*")].filter((one) =>
    one.checkVisibility({checkOpacity: true, checkVisibilityCSS: true}));
  const told = (one) => `${one.tagName} ${one.className.baseVal ?? one.className} "${one.textContent.slice(0, 30)}"`;
  for (const one of shown) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (own && !one.closest(":disabled, .skip, .unseen, title")) {
      const style = getComputedStyle(one);
      const front = rgba(one instanceof SVGElement ? style.fill : style.color).slice(0, 3);
      const [dark, light] = [luminance(front), luminance(behind(one))].sort((a, b) => a - b);
      const ratio = (light + 0.05) / (dark + 0.05);
      const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 600);
      if (ratio < (large ? 3 : 4.5)) faults.push(`contrast ${ratio.toFixed(2)}: ${told(one)}`);
    }
    const named = one.getAttribute("aria-label") || one.getAttribute("aria-labelledby");
    if (one.matches("input, select, textarea") && !one.labels?.length && !named) faults.push(`no label: ${told(one)}`);
    if (one.matches("button, a, summary") && !one.textContent.trim() && !named) faults.push(`no name: ${told(one)}`);
    if (one.matches("img") && !one.hasAttribute("alt")) faults.push("img without alt");
    if (one.matches("svg") && one.getAttribute("role") !== "img" && !one.closest("[aria-hidden]")) faults.push("svg without role");
    if (one.matches("[role=img], [role=region], form, nav, dialog") && !named) faults.push(`no name: ${told(one)}`);
    if (one.matches("svg text")) {
      const [text, whole] = [one, one.ownerSVGElement].map((part) => part.getBoundingClientRect());
      if (text.left < whole.left || text.right > whole.right) faults.push(`cut off: ${told(one)}`);
    }
    if (one.matches("th") && !one.scope) faults.push(`th without scope: ${told(one)}`);
    if (one.tabIndex > 0) faults.push(`tabindex above 0: ${told(one)}`);
    if (one.matches("[onclick], [tabindex='0']:not(.scroll, pre)")) faults.push(`odd control: ${told(one)}`);
    for (const word of (one.getAttribute("aria-labelledby") ?? "").split(" ").filter(Boolean)) {
      if (!document.getElementById(word)) faults.push(`labelled by nothing: ${told(one)}`);
    }
  }
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  if (new Set(ids).size !== ids.length) faults.push("an id twice");
  if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
  if (!document.title || !document.documentElement.lang) faults.push("no title or language");
  if (document.documentElement.scrollWidth > innerWidth) faults.push(`${document.documentElement.scrollWidth} wide on ${innerWidth}`);
  return faults;
})()
