// The graph drawing: colors show where an operator runs, marks show where its operands change
// layout.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/report/format.h"
#include "planner/report/graph_boxes.h"
#include "planner/report/graph_layout.h"
#include "planner/report/markup.h"
#include "planner/report/sections.h"
#include "planner/report/text.h"

namespace espalier {
namespace {

constexpr size_t kBoxColumns = 27;   // of the name, in the font of the style
constexpr size_t kTextColumns = 31;  // of the smaller lines
constexpr size_t kLabelColumns = 30;
constexpr size_t kHoverColumns = 120;
constexpr int kMaxViews = 40;
constexpr size_t kMaxGraphHoverBytes = 300000;  // per drawing

std::string Short(const std::string& text) { return EscapedShort(text, kHoverColumns); }

// Lines of one <title>; every part is shortened and escaped here, so that sizes stay bounded.
std::string HoverLines(const std::vector<std::string>& lines) {
  return absl::StrCat(
      "<title>",
      absl::StrJoin(lines, "\n",
                    [](std::string* out, const std::string& line) { out->append(Short(line)); }),
      "</title>");
}

std::string BoxHover(const GraphBox& box) {
  std::vector<std::string> lines = {box.name, absl::StrCat("operator ", box.op)};
  if (box.count > 1) lines.push_back(absl::StrCat(box.count, " operators"));
  if (box.view < 0) {
    lines.push_back("not in the plan");
  } else {
    lines.push_back(absl::StrCat("split ", box.split));
    lines.push_back(absl::StrCat("devices ", box.devices));
    lines.push_back(absl::StrCat("forward and backward ", ReadableSeconds(box.seconds)));
  }
  lines.insert(lines.end(), box.notes.begin(), box.notes.end());
  return HoverLines(lines);
}

std::string DrawBox(const GraphBox& box, const GraphLayout::Place& place,
                    const LayoutOptions& options, HoverBudget* budget) {
  const double x = place.x, y = place.y, middle = x + options.box_width / 2;
  auto text = [&](double down, absl::string_view css, const std::string& content, size_t columns) {
    return absl::StrCat("<text x=\"", Coordinate(middle), "\" y=\"", Coordinate(y + down),
                        "\" class=\"", css, "\">", EscapedShort(content, columns), "</text>");
  };
  const std::string kind = box.split.empty() ? box.op : absl::StrCat(box.op, " · ", box.split);
  const std::string where = box.view < 0 ? "not in the plan"
                                         : absl::StrCat("on ", Shortened(box.devices, 16), " · ",
                                                        ReadableSeconds(box.seconds));
  const std::string view = box.view < 0 ? "" : absl::StrCat(" style=\"--h:", Hue(box.view), "\"");
  std::string out = absl::StrCat(
      "<g class=\"node", box.view < 0 ? " unplaced" : "", "\"", view, ">",
      budget->Choose(BoxHover(box), ""),
      box.count > 1 ? absl::StrCat("<rect x=\"", Coordinate(x + 5), "\" y=\"", Coordinate(y - 4),
                                   "\" width=\"", Coordinate(options.box_width), "\" height=\"",
                                   Coordinate(options.box_height), "\" rx=\"7\" class=\"behind\"/>")
                    : "",
      "<rect x=\"", Coordinate(x), "\" y=\"", Coordinate(y), "\" width=\"",
      Coordinate(options.box_width), "\" height=\"", Coordinate(options.box_height),
      "\" rx=\"7\"/>", text(18, "name", box.name, kBoxColumns), text(33, "", kind, kTextColumns),
      text(47, "soft", where, kTextColumns));
  if (!box.notes.empty()) {
    // A layout conversion that does not come from a box: of a parameter, an input or a gradient.
    absl::StrAppend(&out, "<circle cx=\"", Coordinate(x + 2), "\" cy=\"", Coordinate(y + 2),
                    "\" r=\"4.5\" class=\"mark\"/>");
  }
  return out + "</g>\n";
}

std::string EdgeHover(const BoxGraph& graph, const GraphEdge& edge) {
  std::vector<std::string> lines = {absl::StrCat(Shortened(graph.boxes[edge.from].name, 56), " → ",
                                                 Shortened(graph.boxes[edge.to].name, 56),
                                                 edge.to_next_layer ? " of the next layer" : "")};
  lines.insert(lines.end(), edge.notes.begin(), edge.notes.end());
  return HoverLines(lines);
}

std::string LabelOf(const GraphEdge& edge) {
  if (edge.bytes <= 0) return edge.change;
  return absl::StrCat(edge.change, " ", ReadableBytes(edge.bytes));
}

std::string DrawEdge(const BoxGraph& graph, const GraphEdge& edge, const GraphLayout::Line& line,
                     HoverBudget* budget) {
  const absl::string_view css = edge.to_next_layer    ? "edge back"
                                : edge.change.empty() ? "edge"
                                                      : "edge change";
  const absl::string_view arrow = edge.to_next_layer    ? "arrow-back"
                                  : edge.change.empty() ? "arrow"
                                                        : "arrow-change";
  return absl::StrCat("<path class=\"", css, "\" d=\"", line.path, "\" marker-end=\"url(#", arrow,
                      ")\">", budget->Choose(EdgeHover(graph, edge), ""), "</path>\n");
}

std::string DrawLabel(const GraphEdge& edge, const GraphLayout::Line& line) {
  const std::string text = Shortened(LabelOf(edge), kLabelColumns);
  const double width = 6.1 * static_cast<double>(Columns(text)) + 12;
  return absl::StrCat("<g class=\"pill\"><rect x=\"", Coordinate(line.label_x - width / 2),
                      "\" y=\"", Coordinate(line.label_y - 8), "\" width=\"", Coordinate(width),
                      "\" height=\"15\" rx=\"7.5\"/>",
                      SvgText(line.label_x, line.label_y + 3.5, "", text), "</g>\n");
}

std::string Marker(absl::string_view id) {
  return absl::StrCat("<marker id=\"", id,
                      "\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" "
                      "markerHeight=\"6\" orient=\"auto\"><path class=\"",
                      id, "\" d=\"M0 0L8 4L0 8z\"/></marker>");
}

std::string Picture(const BoxGraph& graph) {
  const LayoutOptions options;
  HoverBudget budget(kMaxGraphHoverBytes);
  std::vector<LayoutEdge> edges;
  for (const GraphEdge& edge : graph.edges) {
    edges.push_back({edge.from, edge.to, !edge.change.empty() && !edge.to_next_layer});
  }
  const GraphLayout layout = LayOutGraph(static_cast<int>(graph.boxes.size()), edges, options);
  std::string content = absl::StrCat("<defs>", Marker("arrow"), Marker("arrow-change"),
                                     Marker("arrow-back"), "</defs>\n");
  for (const GraphLayout::Trunk& trunk : layout.trunks) {
    absl::StrAppend(
        &content, "<path class=\"edge\" d=\"", trunk.path, "\">",
        budget.Choose(HoverLines({absl::StrCat("from ", graph.boxes[trunk.from].name)}), ""),
        "</path>\n");
  }
  // Layout conversions last, so that nothing covers them.
  for (const bool change : {false, true}) {
    for (size_t e = 0; e < graph.edges.size(); ++e) {
      if (graph.edges[e].change.empty() == change) continue;
      content += DrawEdge(graph, graph.edges[e], layout.edges[e], &budget);
    }
  }
  for (size_t b = 0; b < graph.boxes.size(); ++b) {
    content += DrawBox(graph.boxes[b], layout.boxes[b], options, &budget);
  }
  for (size_t e = 0; e < graph.edges.size(); ++e) {
    if (edges[e].labelled) content += DrawLabel(graph.edges[e], layout.edges[e]);
  }
  return absl::StrCat(
      "<div class=\"scroll\">",
      Svg(layout.width, layout.height, "graph", "The graph and where it runs", content),
      "</div>\n");
}

std::string GraphLegend(const BoxGraph& graph) {
  std::vector<int> operators(graph.views.size(), 0);
  std::vector<double> seconds(graph.views.size(), 0);
  for (const GraphBox& box : graph.boxes) {
    if (box.view < 0) continue;
    operators[box.view] += box.count;
    seconds[box.view] += box.seconds;
  }
  std::string out = "<p class=\"legend\">";
  const int views = static_cast<int>(graph.views.size());
  for (int v = 0; v < std::min(views, kMaxViews); ++v) {
    const std::vector<int>& devices = graph.views.devices(v);
    absl::StrAppend(&out, "<span><i class=\"view\" style=\"--h:", Hue(v), "\"></i>",
                    devices.empty() ? "no device"
                                    : absl::StrCat(devices.size() == 1 ? "device " : "devices ",
                                                   EscapedShort(NumberRanges(devices), 60)),
                    " <small>", operators[v], operators[v] == 1 ? " operator, " : " operators, ",
                    ReadableSeconds(seconds[v]), "</small></span>");
  }
  if (views > kMaxViews) absl::StrAppend(&out, "<span>and ", views - kMaxViews, " more</span>");
  return absl::StrCat(out,
                      "<span><i class=\"pill\"></i>change of layout</span><span><i class=\"dot\">"
                      "</i>of a parameter, an input or a gradient</span></p>\n");
}

}  // namespace

std::string GraphSection(const v1::Plan& plan, const Graph& graph) {
  const BoxGraph boxes = MakeBoxGraph(plan, graph);
  std::string content;
  if (boxes.boxes.empty()) {
    content = Note("There is no graph to show.");
  } else {
    content = absl::StrCat(GraphLegend(boxes), Picture(boxes));
  }
  if (std::any_of(boxes.boxes.begin(), boxes.boxes.end(),
                  [](const GraphBox& box) { return box.count > 1; })) {
    content += Note(
        "Operators that differ only in the number of their layer, and that the plan treats alike, "
        "share a box; dashed lines lead on to the next layer. Times are their sums.");
  }
  if (boxes.left_out > 0) {
    content += Note(absl::StrCat("The picture stops after ", boxes.boxes.size(),
                                 " boxes: ", boxes.left_out, " of ", boxes.operators,
                                 " operators are not in it."));
  }
  if (boxes.edges_left_out > 0) {
    content += Note(absl::StrCat(boxes.edges_left_out, " edges are not drawn."));
  }
  if (boxes.unknown > 0) {
    content += Note(absl::StrCat(boxes.unknown,
                                 " operators of the plan are not in this graph: is the plan of "
                                 "another one?"));
  }
  return Section("graph", "The graph and where it runs", content);
}

}  // namespace espalier
