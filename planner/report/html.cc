#include "planner/report/html.h"

#include "absl/strings/str_cat.h"
#include "planner/report/markup.h"
#include "planner/report/sections.h"

namespace espalier {
namespace {

// Defense in depth: even if escaping fails, the page may load and run nothing.
constexpr char kPolicy[] = "default-src 'none'; style-src 'unsafe-inline'";

constexpr char kNavigation[] =
    "<nav><a href=\"#alternatives\">Alternatives</a><a href=\"#step\">Step</a><a "
    "href=\"#graph\">Graph</a><a "
    "href=\"#changes\">Changes of layout</a><a href=\"#timeline\">Timeline</a><a "
    "href=\"#links\">Links</a><a href=\"#memory\">Memory</a><a href=\"#operators\">Operators</a>"
    "</nav>\n";

}  // namespace

std::string RenderPlanHtml(const v1::Plan& plan, const Graph& graph, const Timeline& timeline) {
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"",
      Escaped(kPolicy),
      "\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
      EscapedShort(graph.name.empty() ? "plan" : graph.name, 80), " — Espalier</title>\n<style>",
      PageStyle(), "</style>\n</head>\n<body>\n<main>\n", HeadlineSection(plan, graph), kNavigation,
      AlternativesSection(plan), StepSection(plan), GraphSection(plan, graph), ChangesSection(plan),
      GanttSection(plan, timeline), LinksSection(plan, timeline), MemorySection(timeline),
      OperatorsSection(plan), "</main>\n</body>\n</html>\n");
}

}  // namespace espalier
