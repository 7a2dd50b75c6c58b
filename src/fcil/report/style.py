"""The style sheet of a page: phone, desk, dark and paper."""

from __future__ import annotations

from fcil.report import colours

_SCREEN = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1e21;--soft:#5a6067;--rule:#dfe2e5;
--tray:#f3f5f7;--link:#0b5fa5;--warn:#fff6e0;--warn-edge:#d99a00}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;overflow-wrap:break-word;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:40px 24px 72px}
header{padding-bottom:8px}
h1{font-size:1.9rem;line-height:1.2;font-weight:650;letter-spacing:-.018em;margin:0 0 8px;
overflow-wrap:anywhere}
h2{font-size:1.25rem;line-height:1.3;font-weight:650;letter-spacing:-.008em;margin:0 0 4px}
h3{font-size:1rem;font-weight:650;margin:28px 0 8px;overflow-wrap:anywhere}
p{margin:0 0 12px;max-width:70ch}
li{overflow-wrap:anywhere}
.soft,small,.fine{color:var(--soft)}
small,.fine{font-size:.8125rem;font-weight:400}
.fine{max-width:none;margin:0 0 4px}
a{color:var(--link);text-underline-offset:2px}
nav{margin-top:18px;font-size:.9rem;display:flex;flex-wrap:wrap;gap:4px 18px}
section{margin-top:44px;padding-top:20px;border-top:1px solid var(--rule)}
code{font:.8125rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
pre{background:var(--tray);border-radius:6px;padding:12px 14px;margin:0 0 12px;
white-space:pre-wrap;overflow-wrap:anywhere}
.scroll{overflow-x:auto;margin:12px 0}
.scroll:focus-visible{outline:2px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;line-height:1.4}
caption{text-align:left;font-weight:600;padding:0 0 6px}
th,td{text-align:left;padding:6px 12px 6px 0;vertical-align:baseline}
thead th{font-weight:500;color:var(--soft);border-bottom:1px solid var(--rule);white-space:nowrap;
vertical-align:bottom}
tbody th{font-weight:500}
.data tbody tr+tr>*{border-top:1px solid var(--rule)}
.data td.n,.data th.n{text-align:right;white-space:nowrap;padding:6px 0 6px 18px}
.data td.id,.data th.id{padding-left:18px}
.data td.id{white-space:nowrap}
td code,th code{font-size:.75rem;overflow-wrap:normal}
details .data caption{display:none}
.data th[scope=row]{min-width:9em}
.result{width:100%}
.result td.main{font-weight:650}
.result .key{margin-right:8px;vertical-align:-1px}
.result th small{display:block;overflow-wrap:anywhere}
.notes{list-style:none;margin:16px 0 0;padding:0}
.notes li{background:var(--warn);border-left:3px solid var(--warn-edge);border-radius:0 4px 4px 0;
padding:8px 14px;margin:0 0 8px;overflow-wrap:anywhere}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));
gap:28px 40px;margin:16px 0;align-items:start}
.grid>*{min-width:0}
.tiles{display:flex;flex-wrap:wrap;gap:12px 44px;align-items:flex-start}
.tiles>*{max-width:100%}
.curve{display:grid;grid-template-columns:minmax(0,2fr) minmax(180px,1fr);gap:8px 36px;
align-items:center;margin:12px 0}
svg{display:block;max-width:100%}
svg text{fill:var(--soft);font-size:8.5px;font-variant-numeric:tabular-nums}
svg.chart{width:100%;height:auto}
.legend .soft{font-weight:400;font-size:.8125rem}
svg .grid{stroke:var(--rule);stroke-width:1}
svg .axis{fill:var(--ink)}
.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.band{fill:var(--c);opacity:.16}
.whisker{stroke:var(--c);stroke-width:7;opacity:.25}
.mark{fill:var(--c);stroke:var(--paper);stroke-width:1}
.mark.ring{fill:var(--paper);stroke:var(--c);stroke-width:1.8}
.legend{list-style:none;margin:0;padding:0;font-size:.9rem;max-width:300px}
.legend li{display:flex;align-items:center;gap:10px;padding:4px 0}
.legend span{min-width:0;overflow-wrap:anywhere}
.legend b{margin-left:auto;font-weight:600;font-variant-numeric:tabular-nums}
.key,.legend svg{display:inline-block;flex:none}
.bars{width:100%;table-layout:fixed}
.bars th{width:9em;font-weight:400;overflow-wrap:anywhere;padding:0 12px 0 0;
vertical-align:middle}
.bars td{padding:0;vertical-align:middle}
.bars td.n{width:5.2em;text-align:right}
.track{position:relative;height:28px}
.track i{position:absolute;left:0;top:6px;bottom:6px;background:var(--c);border-radius:0 2px 2px 0}
.track u{position:absolute;top:0;bottom:0;border-left:1px solid var(--rule)}
.scale{position:relative;height:18px;font-size:.75rem;color:var(--soft)}
.scale span{position:absolute;transform:translateX(-50%)}
.scale span:first-child{transform:none}
.heat{border-collapse:separate;border-spacing:2px;font-size:.8125rem}
.heat caption{padding-bottom:2px;overflow-wrap:anywhere}
.heat .key{margin-right:8px;vertical-align:-1px}
.heat th{font-weight:400;color:var(--soft);padding:3px 8px 3px 0;border:0;white-space:nowrap}
.heat thead th+th{text-align:center;padding:3px}
.heat td{text-align:center;padding:4px 6px;border-radius:3px;min-width:3.4em}
.heat .total{font-weight:600;color:var(--ink)}
.heat .tall span{display:inline-block;writing-mode:vertical-rl;transform:rotate(180deg);
max-height:11em;white-space:normal;overflow-wrap:anywhere;line-height:1.15}
.heat thead .tall{vertical-align:bottom}
.heat .none{color:var(--soft)}
svg.holdings{max-width:none}
svg.holdings text{font-size:12px}
.tray{fill:var(--tray)}
.dot{fill:var(--link)}
details{margin:12px 0}
summary{cursor:pointer;color:var(--link);font-size:.9rem;padding:4px 0}
.settings{columns:3 260px;column-gap:36px;margin:0;font-size:.8125rem}
.settings div{display:flex;justify-content:space-between;gap:12px;break-inside:avoid;
border-bottom:1px solid var(--rule);padding:3px 0}
.settings dt{color:var(--soft);overflow-wrap:anywhere}
.settings dd{margin:0;text-align:right;overflow-wrap:anywhere}
footer{margin-top:56px;color:var(--soft);font-size:.8125rem}
"""

_DARK = """
:root{--paper:#14171a;--ink:#e4e6e8;--soft:#a0a6ad;--rule:#2c3137;--tray:#1e2227;--link:#7dbcf2;
--warn:#2a2415;--warn-edge:#c9961a}
"""

_PHONE = """
main{padding:24px 16px 48px}
h1{font-size:1.5rem}
section{margin-top:32px}
.curve{grid-template-columns:minmax(0,1fr)}
svg.chart text{font-size:12.5px}
.result{min-width:620px}
.result tbody th{position:sticky;left:0;background:var(--paper);max-width:42vw}
"""

_PAPER = """
@page{margin:14mm}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
body{font-size:10.5pt}
main{max-width:none;padding:0}
nav{display:none}
section{margin-top:18px;padding-top:12px}
section.sheet{break-before:page;border-top:0;margin-top:0;padding-top:0}
h2,h3,caption{break-after:avoid}
tr,svg,.notes li,figure,.curve,.grid>*,.tiles>*{break-inside:avoid}
thead{display:table-header-group}
.data caption{white-space:nowrap}
.data:not(:has(tbody tr:nth-child(16))){break-inside:avoid}
.scroll{overflow:visible}
table{font-size:8pt}
.result,.result tbody th{min-width:0;position:static}
.data td.n,.data th.n{padding-left:8px}
.data td.n,.data th.n,.data th.id{white-space:normal}
.data th{overflow-wrap:anywhere}
.data.wide{font-size:6.5pt}
.data.wide td.n,.data.wide th.n{padding-left:4px}
.data td.id,.data th.id{padding-left:8px}
.data th[scope=row]{min-width:0}
.data td,.data th,.data td.n,.data th.n{padding-top:3px;padding-bottom:3px}
td code{font-size:6.5pt;white-space:normal;overflow-wrap:anywhere}
.track{height:20px}
.track i{top:3px;bottom:3px}
.heat{font-size:7pt;border-spacing:1px}
.heat td{min-width:0;padding:3px}
.heat.wide{font-size:6pt}
.heat.wide td,.heat.wide thead th+th{padding:3px 1px}
.grid{grid-template-columns:1fr 1fr;gap:18px 24px}
.tiles{gap:6px 28px}
svg.holdings{max-width:100%;height:auto}
details>summary{list-style:none;color:var(--ink);font-weight:600}
details::details-content{content-visibility:visible;height:auto}
"""

CSS = (
    _SCREEN
    + colours.css("light")
    + f"\n@media screen and (prefers-color-scheme:dark){{{_DARK}{colours.css('dark')}}}"
    + f"\n@media screen and (max-width:640px){{{_PHONE}}}"
    + f"\n@media print{{{_PAPER}}}"
)
"""Everything between `<style>` and `</style>`."""
