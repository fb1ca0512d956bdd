// The style sheet of a report: light and dark by the reader's system, one column on a phone.
#pragma once

namespace trireme::report {

inline constexpr const char* page_style = R"css(
:root{color-scheme:light dark;--page:#f6f6f4;--card:#fff;--ink:#1d1e20;--soft:#62656c;
--line:#e2e2de;
--grid:#eeeeeb;--good:#1a7f4e;--warn:#a15c00;--bad:#b3261e;--calm:#2563c4;--add:#d9f2e1;
--del:#fbdedd;
--c0:#2563c4;--c1:#b5560a;--c2:#14774f;--c3:#b9314f;--c4:#7a56c8;--c5:#0b7688;--c6:#80600a;
--c7:#646b78}
@media(prefers-color-scheme:dark){:root{--page:#121316;--card:#1b1d21;--ink:#e9e9e7;--soft:#a0a3ab;
--line:#2e3137;--grid:#27292e;--good:#5cc98f;--warn:#e2a04a;--bad:#f0837c;--calm:#7fb0ff;
--add:#173a28;
--del:#452122;--c0:#6ea8ff;--c1:#f59a4b;--c2:#4cc492;--c3:#f07c96;--c4:#b59af0;--c5:#4fc3d6;
--c6:#d9b24a;
--c7:#a3a8b3}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1320px;padding:24px 20px 48px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums}
h1{font-size:24px;line-height:1.25;margin:0;overflow-wrap:anywhere}
h2{font-size:17px;margin:36px 0 12px}
h3{font-size:14px;margin:0;display:inline}
small,.soft{color:var(--soft);font-size:13px}
a{color:var(--calm)}
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
header{display:flex;flex-wrap:wrap;align-items:center;gap:6px 14px}
.badge{padding:1px 11px;border-radius:99px;border:1.5px solid;font-size:13px;font-weight:600}
.running{color:var(--calm)}.done{color:var(--good)}.stopped,.unknown{color:var(--warn)}
.failed,.ended{color:var(--bad)}
.bar{height:8px;border-radius:4px;background:var(--line);margin:14px 0 8px;overflow:hidden}
.bar i{display:block;height:100%;background:var(--c0)}
.facts{margin:0;display:flex;flex-wrap:wrap;gap:2px 22px;color:var(--soft);font-size:14px}
.facts b{color:var(--ink);font-weight:600}
.notes{list-style:none;padding:0;margin:20px 0 0;display:grid;gap:8px}
.notes li{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--c7);
border-radius:6px;
padding:9px 14px}
.notes li.warning{border-left-color:var(--warn)}
.notes small{display:block}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:12px;
margin:20px 0 0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.tiles b{display:block;font-size:22px;font-weight:600;line-height:1.3}
.tiles span{color:var(--soft);font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,290px),1fr));gap:14px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;
padding:12px 12px 8px;
display:flex;flex-direction:column;justify-content:space-between}
figcaption small{margin-left:8px}
.legend{margin:2px 0 6px;font-size:12.5px;color:var(--soft);display:flex;flex-wrap:wrap;gap:0 14px}
.legend b{color:var(--ink);font-weight:600}.legend i{font-style:normal}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font-size:11px;fill:var(--soft)}
svg .y{text-anchor:end}svg .x{text-anchor:middle}
.grid{stroke:var(--grid)}.zero,.axis,.tick{stroke:var(--line)}.axis,.zero{stroke-width:1.2}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.thin{stroke-width:1.1;stroke-opacity:.55}.dashed{stroke-dasharray:4 4}
.band{fill-opacity:.16}.area{fill-opacity:.78}.dot{stroke:var(--card);stroke-width:1}
.line,.grid,.zero,.axis,.tick,.restart path{vector-effect:non-scaling-stroke}
.restart path{stroke:var(--soft);stroke-dasharray:3 3;fill:none}.restart .flag{fill:var(--soft);
stroke:none}
.tip{fill:transparent}.tip:hover{fill:var(--ink);fill-opacity:.07}
.c0{stroke:var(--c0);fill:var(--c0)}.c1{stroke:var(--c1);fill:var(--c1)}.c2{stroke:var(--c2);
fill:var(--c2)}
.c3{stroke:var(--c3);fill:var(--c3)}.c4{stroke:var(--c4);fill:var(--c4)}.c5{stroke:var(--c5);
fill:var(--c5)}
.c6{stroke:var(--c6);fill:var(--c6)}.c7{stroke:var(--c7);fill:var(--c7)}
path.line{fill:none}path.band,path.area{stroke:none}circle.dot{stroke:var(--card)}
.k0{color:var(--c0)}.k1{color:var(--c1)}.k2{color:var(--c2)}.k3{color:var(--c3)}.k4{
color:var(--c4)}
.k5{color:var(--c5)}.k6{color:var(--c6)}.k7{color:var(--c7)}
.pick{position:absolute;opacity:0}
.picks{display:flex;flex-wrap:wrap;gap:6px;margin:0 0 12px}
.picks label{border:1px solid var(--line);background:var(--card);border-radius:99px;
padding:2px 14px;cursor:pointer}
#all:checked~.picks [for=all],#best:checked~.picks [for=best],#worst:checked~.picks [for=worst],
#any:checked~.picks [for=any]{background:var(--ink);color:var(--card)}
.pick:focus-visible~.picks{outline:2px solid var(--calm);outline-offset:3px}
#best:checked~.samples :not(.best).sample,#worst:checked~.samples :not(.worst).sample,
#any:checked~.samples :not(.any).sample{display:none}
.samples{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr));gap:14px}
.sample{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px;
min-width:0}
.sample p{margin:0 0 6px}
.chip{display:inline-block;background:var(--grid);border-radius:4px;padding:0 7px;
margin:0 4px 3px 0;font-size:13px}
pre{margin:0 0 8px;padding:8px 10px;background:var(--page);border-radius:6px;white-space:pre-wrap;
overflow-wrap:anywhere;max-height:20em;overflow:auto;unicode-bidi:isolate}
pre.prompt{color:var(--soft);max-height:9em}
ins{background:var(--add);text-decoration:none}del{background:var(--del)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;background:var(--card);border:1px solid var(--line);font-size:14px}
th,td{padding:5px 12px;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600;font-size:13px}
td.n,th.n{text-align:right;white-space:nowrap}
td code{overflow-wrap:anywhere}
details{margin:10px 0}summary{cursor:pointer}
footer{margin-top:40px;color:var(--soft);font-size:13px}
@media(max-width:520px){body{padding:16px 12px 32px;font-size:14.5px}.tiles{
grid-template-columns:1fr 1fr}
.tiles b{font-size:19px}h1{font-size:20px}th,td{padding:5px 8px}}
@media print{body{max-width:none;background:#fff}figure,.sample{break-inside:avoid}}
)css";

}  // namespace trireme::report
