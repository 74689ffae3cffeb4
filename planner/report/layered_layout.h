// Layered drawing of a graph that has no cycle (Sugiyama, Tagawa, Toda, "Methods for visual
// understanding of hierarchical system structures", 1981): layers by longest path, order in a layer
// by barycentres, then x so that neighbours lie close to each other.
#pragma once

#include <utility>
#include <vector>

namespace espalier {

// Something that has a place in a layer: a box, or the point where a line passes the layer.
struct LayerItem {
  int box = -1;     // -1: a line passes
  int source = -1;  // box where the line starts
  int layer = 0;
  double width = 0;
  double x = 0;            // of the middle
  std::vector<int> above;  // items of the layer above, joined to this one by a line
  std::vector<int> below;
};

struct Layered {
  std::vector<LayerItem> items;          // item i is box i for i < number of boxes
  std::vector<std::vector<int>> layers;  // items from left to right
  // By edge: the item of the layer above its target where its line comes from; -1 for a long edge
  // that got no items of its own because there would be too many.
  std::vector<int> last_hop;
};

struct LayerOptions {
  double box_width = 200;
  double line_width = 10;  // room for a line that passes
  double gap = 24;
  int max_passing = 2000;
  int sweeps = 8;
};

// `edges` (from, to) with 0 <= from < to < boxes, each pair once. Lines that leave the same box
// share their way as far as they can.
Layered MakeLayers(int boxes, const std::vector<std::pair<int, int>>& edges,
                   const LayerOptions& options = {});

// Values next to `wanted` (least squares) that keep their order and at least `apart[i]` between
// values i and i + 1.
std::vector<double> PlaceInOrder(const std::vector<double>& wanted,
                                 const std::vector<double>& apart);

}  // namespace espalier
