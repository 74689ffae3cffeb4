// The page's style sheet. Colors are variables, defined for light and dark mode; a machine view or
// memory curve supplies its hue (--h).
#include "planner/report/sections.h"

namespace espalier {
namespace {

constexpr char kColours[] = R"css(
:root{color-scheme:light dark;
--paper:#f5f6f8;--card:#fff;--ink:#1b2430;--soft:#5d6877;--line:#dfe3e9;--idle:#eef0f3;
--fwd:#4a90d9;--bwd:#1f5599;--upd:#8a63c9;--rsh:#e8960c;--syn:#d2451e;
--step:#c9d6e6;--used:#4a90d9;--much:#d2451e;--edge:#9aa5b3;--good:#e8f1fb;
--vs:62%;--vl:89%;--vb:52%;--cl:42%}
@media(prefers-color-scheme:dark){:root{
--paper:#12161c;--card:#1a2029;--ink:#e6eaf0;--soft:#9aa6b5;--line:#2d3643;--idle:#252d38;
--fwd:#6cb0f5;--bwd:#3d77c2;--upd:#b596ee;--rsh:#f5b041;--syn:#f4744e;
--step:#38465a;--used:#6cb0f5;--much:#f4744e;--edge:#66727f;--good:#1d2c3f;
--vs:38%;--vl:24%;--vb:52%;--cl:64%}}
)css";

constexpr char kPage[] = R"css(
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1320px;margin:0 auto;padding:28px 20px 48px}
header{margin-bottom:20px}
.brand{color:var(--soft);font-size:12px;letter-spacing:.08em;text-transform:uppercase}
h1{margin:2px 0 2px;font-size:28px;font-weight:650;overflow-wrap:anywhere}
h2{margin:0 0 12px;font-size:17px;font-weight:650}
code{font:12px ui-monospace,"DejaVu Sans Mono",monospace}
.sub{margin:0 0 16px;color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(205px,1fr));gap:12px}
.card,section{background:var(--card);border:1px solid var(--line);border-radius:10px}
.card{padding:12px 14px;overflow-wrap:anywhere}
.what{color:var(--soft);font-size:12px}
.value{font-size:21px;font-weight:650;line-height:1.3}
.more{color:var(--soft);font-size:12px}
nav{display:flex;flex-wrap:wrap;gap:6px 18px;margin:0 2px 14px}
a{color:inherit}
section{padding:18px 20px;margin:0 0 16px}
.scroll{overflow-x:auto}
.note{margin:8px 0 0;color:var(--soft);font-size:12.5px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:left;border-bottom:1px solid var(--line);vertical-align:middle}
th{color:var(--soft);font-weight:500;font-size:12px;white-space:nowrap}
td{overflow-wrap:anywhere}
td:first-child{min-width:140px}
td.wide{min-width:230px}
.one{white-space:nowrap}
tbody tr:last-child td{border-bottom:0}
.num{text-align:right;white-space:nowrap}
tr.chosen td{background:var(--good);font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:0 0 10px;font-size:12.5px}
.legend small{color:var(--soft);font-size:12px}
.legend i{display:inline-block;width:14px;height:11px;border-radius:3px;margin-right:6px;
vertical-align:-1px}
)css";

constexpr char kPictures[] = R"css(
svg{display:block;max-width:100%;height:auto;margin:0 auto;font-size:12px}
svg.bars,svg.gantt,svg.memory,svg.meter{margin:0}
svg.meter{max-width:none}
svg text{fill:var(--ink)}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}
svg .strong{font-weight:650}svg text.soft,svg .tick{fill:var(--soft)}
svg .tick,svg.gantt text{font-size:11px}
.grid{stroke:var(--line);fill:none}
.idle{fill:var(--idle)}
.fwd{fill:var(--fwd);background:var(--fwd)}.bwd{fill:var(--bwd);background:var(--bwd)}
.upd{fill:var(--upd);background:var(--upd)}.rsh{fill:var(--rsh);background:var(--rsh)}
.syn{fill:var(--syn);background:var(--syn)}
.step{fill:var(--step);background:var(--step)}
.refused{fill:none;stroke:var(--much);stroke-dasharray:4 3}
.used{fill:var(--used)}.much{fill:var(--much)}
.gantt rect:hover,.bars g:hover .step{filter:brightness(1.15)}
.graph text{text-anchor:middle;font-size:10.5px}
.graph .name{font-size:11.5px;font-weight:600}
.graph .node rect{fill:hsl(var(--h) var(--vs) var(--vl));stroke:hsl(var(--h) var(--vs) var(--vb))}
.graph .unplaced rect{fill:var(--card);stroke:var(--soft);stroke-dasharray:4 3}
.graph .node .behind{opacity:.55}
.graph .node:hover rect{stroke-width:2.2}
i.view{background:hsl(var(--h) var(--vs) var(--vl));border:1px solid hsl(var(--h) var(--vs) var(--vb))}
.edge{fill:none;stroke:var(--edge);stroke-width:1.3}
.change{stroke:var(--rsh);stroke-width:2.2}
.back{stroke-dasharray:5 4}
.edge:hover{stroke:var(--ink);stroke-width:2.6}
.arrow,.arrow-back{fill:var(--edge)}.arrow-change,.mark{fill:var(--rsh)}
.mark{stroke:var(--card)}
.pill rect{fill:var(--card);stroke:var(--rsh)}
i.pill{border:2px solid var(--rsh);border-radius:6px}i.dot{width:9px!important;height:9px!important;
border-radius:5px!important;background:var(--rsh)}
.pill{pointer-events:none}
.curve{fill:none;stroke:hsl(var(--h) 65% var(--cl));stroke-width:1.6}
.highest{stroke-width:2.4}
i.curve{background:hsl(var(--h) 65% var(--cl))}
.peak{fill:hsl(var(--h) 65% var(--cl))}
.limit{stroke:var(--much);stroke-width:1.6;stroke-dasharray:7 5;fill:none}
svg .limit-text{fill:var(--much)}
)css";

// Print on white without scroll bars; start a section on a new page rather than break it.
constexpr char kPrint[] = R"css(
@media print{
:root{--paper:#fff;--card:#fff;--ink:#111;--soft:#555;--line:#ccc;--idle:#f0f0f0;
--fwd:#4a90d9;--bwd:#1f5599;--upd:#8a63c9;--rsh:#e8960c;--syn:#d2451e;--step:#c9d6e6;
--used:#4a90d9;--much:#d2451e;--edge:#8a8a8a;--good:#eef4fb;--vs:62%;--vl:89%;--vb:52%;--cl:42%}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
@page{margin:12mm}
nav{display:none}
main{max-width:none;padding:0}
body{font-size:11px}
section{border:0;padding:8px 0;margin:0}
h2,.legend{break-after:avoid}
.cards{grid-template-columns:repeat(3,1fr)}
.card,tr,svg{break-inside:avoid}
th,td{padding:3px 6px;font-size:10px}
.scroll{overflow:visible}
svg.graph{max-height:250mm;width:auto}
}
)css";

}  // namespace

std::string PageStyle() { return std::string(kColours) + kPage + kPictures + kPrint; }

}  // namespace espalier
