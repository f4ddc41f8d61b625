"""Pages whose main content a script adds: at load, after a delay, or after a click, a scroll or consent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

SCRIPT_KINDS = ("inline", "fetch", "delayed", "load_more", "scroll", "tabs", "consent")
"""`inline` reads JSON of the page, `fetch` and `delayed` fetch it; the other kinds need an interaction."""

_TARGET = '<div id="app"></div>'
_RENDER = (
    "const source=document.currentScript.dataset.source;"
    "const show=blocks=>{for(const b of blocks)document.getElementById('app').insertAdjacentHTML('beforeend',b)};"
    "const load=use=>fetch(source).then(r=>r.json()).then(d=>use(d.blocks));"
    "const halves=arm=>load(all=>{const n=Math.ceil(all.length/2);let done=false;show(all.slice(0,n));"
    "arm(()=>{if(!done){done=true;show(all.slice(n))}})});"
)
_RUN = {
    "inline": "show(JSON.parse(document.getElementById('page-data').textContent).blocks);",
    "fetch": "load(show);",
    "delayed": "setTimeout(()=>load(show),400);",
    "load_more": "halves(rest=>{const b=document.getElementById('more');b.onclick=()=>{rest();b.remove()}});",
    "scroll": "halves(rest=>addEventListener('scroll',rest));",
    "tabs": "halves(rest=>{document.getElementById('tab').onclick=rest});",
    "consent": "document.getElementById('consent-accept').onclick=e=>{e.target.parentElement.remove();load(show)};",
}


def scripted_content(kind: str, blocks: Sequence[str], data_path: str, words: dict[str, str]) -> tuple[str, str]:
    """Return the static HTML of the main content and the script for the end of the body.

    `words` holds the labels of the buttons: `more`, `details`, `accept` and `cookies`.
    """
    static = {
        "load_more": f'{_TARGET}<button id="more" class="load-more">{escape(words["more"])}</button>',
        "scroll": f'{_TARGET}<div style="height:3000px"></div>',
        "tabs": (
            '<div role="tablist"><button id="tab" role="tab" aria-selected="false">'
            f"{escape(words['details'])}</button></div>{_TARGET}"
        ),
        "consent": (
            f'<div class="cookie-wall"><p>{escape(words["cookies"])}</p>'
            f'<button id="consent-accept">{escape(words["accept"])}</button></div>{_TARGET}'
        ),
    }.get(kind, _TARGET)
    data = page_data(blocks).replace("</", "<\\/")
    inline = f'<script type="application/json" id="page-data">{data}</script>' if kind == "inline" else ""
    return static, f'{inline}<script data-source="{data_path}">{_RENDER}{_RUN[kind]}</script>'


def page_data(blocks: Sequence[str]) -> str:
    """Return the JSON that a script fetches."""
    return json.dumps({"blocks": list(blocks)}, ensure_ascii=False)
