#include "planner/report/graph_layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/report/layered_layout.h"
#include "planner/report/markup.h"

namespace espalier {
namespace {

constexpr double kMargin = 16;
constexpr double kLayerGap = 34;  // between layers, without labels
constexpr double kGutter = 28;    // between columns, without lines
constexpr double kLineGap = 9;    // between parallel lines
constexpr int kMaxLanes = 12;     // beyond that, lines share a lane
constexpr double kMinColumnHeight = 640;
constexpr double kCorner = 7;

std::string At(double x, double y) { return absl::StrCat(Coordinate(x), " ", Coordinate(y)); }

// Appends lines through `points`, horizontal and vertical, with round corners.
std::string RoundedLine(const std::vector<GraphLayout::Place>& points) {
  std::string path = absl::StrCat("M", At(points[0].x, points[0].y));
  for (size_t i = 1; i + 1 < points.size(); ++i) {
    const auto &before = points[i - 1], &here = points[i], &after = points[i + 1];
    // Limits the radius to what both sides of the corner allow.
    auto toward = [&](const GraphLayout::Place& other) {
      const double dx = other.x - here.x, dy = other.y - here.y;
      const double length = std::max(std::abs(dx), std::abs(dy));
      const double share = length > 0 ? std::min(0.5, kCorner / length) : 0;
      return At(here.x + dx * share, here.y + dy * share);
    };
    absl::StrAppend(&path, "L", toward(before), "Q", At(here.x, here.y), " ", toward(after));
  }
  return absl::StrCat(path, "L", At(points.back().x, points.back().y));
}

// Leaves and arrives vertically.
std::string BezierTo(double x0, double y0, double x1, double y1) {
  const double bend = (y1 - y0) * 0.5;
  return absl::StrCat("C", At(x0, y0 + bend), " ", At(x1, y1 - bend), " ", At(x1, y1));
}

struct Column {
  int first_layer = 0, last_layer = 0;  // [first, last)
  double min_x = 0, max_x = 0;          // in the layered layout
  double shift = 0;                     // from there to the page
  double right() const { return max_x + shift; }
};

class Layout {
 public:
  Layout(int boxes, const std::vector<LayoutEdge>& edges, const LayoutOptions& options)
      : options_(options), edges_(edges), boxes_(boxes) {}

  GraphLayout Make() {
    if (boxes_ == 0) return {};
    std::vector<std::pair<int, int>> forward;
    for (const LayoutEdge& edge : edges_) {
      if (edge.from < edge.to) forward.emplace_back(edge.from, edge.to);
    }
    LayerOptions layer_options;
    layer_options.box_width = options_.box_width;
    layered_ = MakeLayers(boxes_, forward, layer_options);
    MeasureLayers();
    FoldIntoColumns();
    CountLanes();
    PlaceColumns();
    for (int b = 0; b < boxes_; ++b) {
      out_.boxes.push_back({X(b) - options_.box_width / 2, top_[layered_.items[b].layer]});
    }
    DrawTrunks();
    DrawEdges();
    return std::move(out_);
  }

 private:
  const LayerItem& item(int i) const { return layered_.items[i]; }
  double X(int i) const { return item(i).x + columns_[column_of_[item(i).layer]].shift; }
  double Bottom(int layer) const { return top_[layer] + options_.box_height; }

  // Labels of a box are stacked above it, so the layer needs the height of the tallest stack.
  void MeasureLayers() {
    std::vector<int> labels(boxes_, 0);
    stack_.assign(layered_.layers.size(), 0);
    for (const LayoutEdge& edge : edges_) {
      if (!edge.labelled || edge.from > edge.to) continue;
      const int layer = item(edge.to).layer;
      stack_[layer] = std::max(stack_[layer], ++labels[edge.to] * options_.label_height);
    }
  }
  double HeightOf(int layer) const { return kLayerGap + stack_[layer] + options_.box_height; }

  std::vector<Column> Fold(int count) const {
    double total = 0;
    const int layers = static_cast<int>(layered_.layers.size());
    for (int l = 0; l < layers; ++l) total += HeightOf(l);
    std::vector<Column> columns;
    double height = 0;
    for (int l = 0; l < layers; ++l) {
      const int wanted = static_cast<int>(height / total * count);
      if (columns.empty() || wanted > static_cast<int>(columns.size()) - 1) {
        columns.push_back({l, l, 1e9, -1e9});
      }
      height += HeightOf(l);
      Column& column = columns.back();
      column.last_layer = l + 1;
      for (int i : layered_.layers[l]) {
        column.min_x = std::min(column.min_x, item(i).x - item(i).width / 2);
        column.max_x = std::max(column.max_x, item(i).x + item(i).width / 2);
      }
    }
    return columns;
  }

  void FoldIntoColumns() {
    double total = 0;
    for (size_t l = 0; l < stack_.size(); ++l) total += HeightOf(static_cast<int>(l));
    columns_ = Fold(1);
    for (int count = 2; total / count >= kMinColumnHeight; ++count) {
      std::vector<Column> columns = Fold(count);
      double width = 0;
      for (const Column& column : columns) width += column.max_x - column.min_x + 2 * kGutter;
      if (width > options_.max_width) break;
      columns_ = std::move(columns);
    }
    column_of_.resize(stack_.size());
    for (size_t c = 0; c < columns_.size(); ++c) {
      for (int l = columns_[c].first_layer; l < columns_[c].last_layer; ++l) {
        column_of_[l] = static_cast<int>(c);
      }
    }
  }

  bool Breaks(int layer) const {  // between this layer and the next
    return layer + 1 < static_cast<int>(column_of_.size()) &&
           column_of_[layer] != column_of_[layer + 1];
  }

  // Lines in the gutter to the right of each column: first those to the next column, then back
  // edges, the shortest innermost.
  void CountLanes() {
    lanes_.assign(columns_.size(), 0);
    for (size_t i = 0; i < layered_.items.size(); ++i) {
      const LayerItem& it = item(static_cast<int>(i));
      if (!Breaks(it.layer) || it.below.empty()) continue;
      lane_of_item_[static_cast<int>(i)] = lanes_[column_of_[it.layer]]++;
    }
    std::vector<std::pair<int, int>> back;  // (span, edge)
    for (size_t e = 0; e < edges_.size(); ++e) {
      if (edges_[e].from < edges_[e].to) continue;
      back.emplace_back(item(edges_[e].from).layer - item(edges_[e].to).layer, static_cast<int>(e));
    }
    std::sort(back.begin(), back.end());
    for (const auto& [span, e] : back) {
      lane_of_edge_[e] = lanes_[column_of_[item(edges_[e].from).layer]]++;
    }
  }
  static double LaneOffset(int lane) { return (std::min(lane, kMaxLanes - 1) + 1) * kLineGap; }

  void PlaceColumns() {
    int most = 0;
    for (int lanes : lanes_) most = std::max(most, lanes);
    const double above = kMargin + (most > 0 ? LaneOffset(most - 1) : 0);
    double x = kMargin, bottom = 0;
    top_.resize(stack_.size());
    for (size_t c = 0; c < columns_.size(); ++c) {
      Column& column = columns_[c];
      column.shift = x - column.min_x;
      const double lanes = lanes_[c] > 0 ? LaneOffset(lanes_[c] - 1) : 0;
      x = column.right() + kGutter + lanes;
      double y = above;
      for (int l = column.first_layer; l < column.last_layer; ++l) {
        top_[l] = y + stack_[l] + (l == column.first_layer ? kLineGap : kLayerGap);
        y = Bottom(l);
      }
      bottom = std::max(bottom, y);
    }
    lowest_ = bottom;
    highest_ = above;
    out_.width = x - kGutter + kMargin;
    out_.height = bottom + kMargin + (most > 0 ? LaneOffset(most - 1) : 0);
  }

  // From the bottom of item `a` to (x, the top of the layer below).
  std::string Hop(int a, double x) const {
    const int layer = item(a).layer;
    const double x0 = X(a), y0 = Bottom(layer), y1 = top_[layer + 1];
    const double y_straight = y1 - stack_[layer + 1];
    if (!Breaks(layer)) {
      return absl::StrCat("M", At(x0, y0), BezierTo(x0, y0, x, y_straight - 4), "L", At(x, y1));
    }
    const double offset = LaneOffset(lane_of_item_.at(a));
    const double gutter = columns_[column_of_[layer]].right() + offset;
    const double low = lowest_ + offset, high = highest_ - offset;
    return RoundedLine({{x0, y0}, {x0, low}, {gutter, low}, {gutter, high}, {x, high}, {x, y1}});
  }

  void DrawTrunks() {
    std::map<int, std::string> paths;
    for (size_t i = boxes_; i < layered_.items.size(); ++i) {
      const LayerItem& it = item(static_cast<int>(i));
      const double x = X(static_cast<int>(i));
      std::string& path = paths[it.source];
      for (int a : it.above) absl::StrAppend(&path, Hop(a, x));
      absl::StrAppend(&path, "V", Coordinate(Bottom(it.layer)));
    }
    for (auto& [source, path] : paths) out_.trunks.push_back({source, std::move(path)});
  }

  // Spreads arriving lines over the top of the box, in their order.
  std::vector<double> Ports(const std::vector<int>& hops) const {
    std::vector<std::vector<std::pair<double, size_t>>> arrivals(boxes_);
    std::vector<double> ports(edges_.size(), 0);
    for (size_t e = 0; e < edges_.size(); ++e) {
      if (edges_[e].from > edges_[e].to) continue;
      const int from = hops[e] < 0 ? edges_[e].from : hops[e];
      arrivals[edges_[e].to].emplace_back(X(from), e);
    }
    for (int b = 0; b < boxes_; ++b) {
      std::sort(arrivals[b].begin(), arrivals[b].end());
      const double parts = static_cast<double>(arrivals[b].size()) + 1;
      for (size_t i = 0; i < arrivals[b].size(); ++i) {
        const double share = static_cast<double>(i + 1) / parts - 0.5;
        ports[arrivals[b][i].second] = X(b) + share * 0.7 * options_.box_width;
      }
    }
    return ports;
  }

  std::string Back(int e) const {
    const int from = edges_[e].from, to = edges_[e].to;
    const double half = options_.box_width / 2, middle = options_.box_height / 2;
    const double offset = LaneOffset(lane_of_edge_.at(e));
    const double x0 = X(from) + half, y0 = top_[item(from).layer] + middle;
    const double x1 = X(to) + half, y1 = top_[item(to).layer] + middle;
    const int source_column = column_of_[item(from).layer];
    const int target_column = column_of_[item(to).layer];
    const double right = columns_[source_column].right() + offset;
    if (source_column == target_column) {
      return RoundedLine({{x0, y0}, {right, y0}, {right, y1}, {x1, y1}});
    }
    const double left = columns_[target_column].right() + offset, high = highest_ - offset;
    return RoundedLine({{x0, y0}, {right, y0}, {right, high}, {left, high}, {left, y1}, {x1, y1}});
  }

  void DrawEdges() {
    std::vector<int> hops(edges_.size(), -1);
    for (size_t e = 0, f = 0; e < edges_.size(); ++e) {
      if (edges_[e].from < edges_[e].to) hops[e] = layered_.last_hop[f++];
    }
    const std::vector<double> ports = Ports(hops);
    std::vector<int> labels(boxes_, 0);
    for (size_t e = 0; e < edges_.size(); ++e) {
      const LayoutEdge& edge = edges_[e];
      GraphLayout::Line line;
      if (edge.from > edge.to) {
        line.path = Back(static_cast<int>(e));
        line.label_x = columns_[column_of_[item(edge.from).layer]].right();
        line.label_y = top_[item(edge.from).layer] + options_.box_height / 2;
      } else {
        const double top = top_[item(edge.to).layer];
        if (hops[e] >= 0) {
          line.path = Hop(hops[e], ports[e]);
        } else {
          const double x0 = X(edge.from), y0 = Bottom(item(edge.from).layer);
          line.path = absl::StrCat("M", At(x0, y0), BezierTo(x0, y0, ports[e], top));
        }
        line.label_x = ports[e];
        if (edge.labelled) {
          line.label_y = top - (labels[edge.to]++ + 0.5) * options_.label_height - 7;
        }
      }
      out_.edges.push_back(std::move(line));
    }
  }

  const LayoutOptions& options_;
  const std::vector<LayoutEdge>& edges_;
  const int boxes_;
  Layered layered_;
  std::vector<double> stack_;  // by layer: height of the labels above it
  std::vector<double> top_;    // by layer
  std::vector<Column> columns_;
  std::vector<int> column_of_;  // by layer
  std::vector<int> lanes_;      // by column
  std::map<int, int> lane_of_item_, lane_of_edge_;
  double lowest_ = 0, highest_ = 0;  // of the boxes
  GraphLayout out_;
};

}  // namespace

GraphLayout LayOutGraph(int boxes, const std::vector<LayoutEdge>& edges,
                        const LayoutOptions& options) {
  return Layout(boxes, edges, options).Make();
}

}  // namespace espalier
