// Layered layout of an acyclic graph (Sugiyama, Tagawa, Toda, "Methods for visual understanding of
// hierarchical system structures", 1981): layers by longest path, order in a layer by barycenters,
// then x so that neighbors are close.
#pragma once

#include <utility>
#include <vector>

namespace espalier {

// An item of a layer: a box, or the point where a line passes through the layer.
struct LayerItem {
  int box = -1;     // -1: a line passes through
  int source = -1;  // box where the line starts
  int layer = 0;
  double width = 0;
  double x = 0;            // of the middle
  std::vector<int> above;  // items of the layer above that are connected to this one
  std::vector<int> below;
};

struct Layered {
  std::vector<LayerItem> items;          // item i is box i for i < number of boxes
  std::vector<std::vector<int>> layers;  // items from left to right
  // By edge: the last item before its target; -1 for a long edge without items, because there would
  // be too many.
  std::vector<int> last_hop;
};

struct LayerOptions {
  double box_width = 200;
  double line_width = 10;  // width reserved for a passing line
  double gap = 24;
  int max_passing = 2000;
  int sweeps = 8;
};

// REQUIRES: `edges` (from, to) are distinct with 0 <= from < to < boxes. Lines that leave the same
// box share their path as far as possible.
Layered MakeLayers(int boxes, const std::vector<std::pair<int, int>>& edges,
                   const LayerOptions& options = {});

// Returns values close to `wanted` (least squares) in the same order, with at least `apart[i]`
// between values i and i + 1.
std::vector<double> PlaceInOrder(const std::vector<double>& wanted,
                                 const std::vector<double>& apart);

}  // namespace espalier
