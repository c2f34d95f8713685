"""How the page looks, in light and in darkness: it follows what the reader's browser prefers."""

STYLE = """
:root {
  --paper: #ffffff; --ink: #1c2024; --faint: #687078; --rule: #e2e5e9; --panel: #f6f7f9;
  --reach: #9aa4b0; --wait: #d9dde2; --spawn: #3b82c4; --load: #8fc1ea; --run: #2e9e6b; --idle: #bfe3d2;
  --blocked: #e0a33a; --stopped: #9b6bd3; --bad: #d1383d; --line: #3b82c4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181c; --ink: #e6e8ea; --faint: #9aa2aa; --rule: #2c3238; --panel: #1d2126;
    --reach: #667080; --wait: #3a4149; --spawn: #4b93d6; --load: #2f5f88; --run: #37b27c; --idle: #24533f;
    --blocked: #d39a3a; --stopped: #a67fdc; --bad: #ee5a5f; --line: #63a8e6;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; padding-bottom: .25rem; border-bottom: 1px solid var(--rule); }
small, .faint { color: var(--faint); font-size: .85em; font-weight: normal; }
pre { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px; padding: .7rem .9rem; overflow: auto;
  max-height: 28rem; font: 12.5px/1.45 ui-monospace, monospace; }
.verdict { border-left: 5px solid var(--run); background: var(--panel); border-radius: 4px; padding: .6rem .9rem;
  font-weight: 600; overflow-wrap: anywhere; }
.verdict.failed { border-color: var(--bad); }
.verdict.running { border-color: var(--blocked); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.bad { background: none; color: var(--bad); }
th { color: var(--faint); font-weight: normal; }
summary { cursor: pointer; margin: .5rem 0 .15rem; font-weight: 600; }
.lane { display: grid; grid-template-columns: 8rem 1fr 11rem; align-items: center; gap: .6rem; height: 17px; }
.lane b { font-weight: normal; font-size: 12px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.lane em { font-size: 12px; color: var(--bad); white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.track { position: relative; height: 11px; background: var(--panel); border-radius: 2px; grid-column: 2; }
.track i { position: absolute; top: 0; height: 100%; border-radius: 2px; }
.axis { height: 20px; position: sticky; top: 0; background: var(--paper); z-index: 1; }
.axis .track { background: none; border-bottom: 1px solid var(--rule); height: 18px; border-radius: 0; }
.axis span { position: absolute; font-size: 11px; color: var(--faint); transform: translateX(-50%); white-space: nowrap; }
.axis span:first-child { transform: none; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: 12px; color: var(--faint); margin: .3rem 0 .6rem; }
.legend i { display: inline-block; width: 12px; height: 10px; border-radius: 2px; margin-right: .35rem; }
.reach { background: var(--reach); } .wait { background: var(--wait); } .spawn { background: var(--spawn); }
.load { background: var(--load); } .run { background: var(--run); } .idle { background: var(--idle); }
.blocked { background: var(--blocked); } .stopped { background: var(--stopped); }
.bad { background: var(--bad); min-width: 4px; }
figure { display: flex; gap: .6rem; margin: .4rem 0; align-items: start; }
figcaption { font-size: 12px; overflow-wrap: anywhere; flex: 0 0 8rem; }
.chart { flex: 1; }
.chart svg { display: block; width: 100%; height: 56px; background: var(--panel); border-radius: 4px; }
polyline { fill: none; stroke: var(--line); stroke-width: 1.3; vector-effect: non-scaling-stroke; opacity: .75; }
polyline:hover { stroke: var(--bad); opacity: 1; }
"""
