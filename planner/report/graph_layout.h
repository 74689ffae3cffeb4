// Positions of the boxes and lines of a graph drawing. Layers run downwards; a long graph is folded
// into columns to fit a page.
#pragma once

#include <string>
#include <vector>

namespace espalier {

struct LayoutEdge {
  int from = 0, to = 0;  // from > to: a back edge, drawn at the side
  bool labelled = false;
};

struct LayoutOptions {
  double box_width = 200, box_height = 56;
  double label_height = 17;
  double max_width = 1500;  // of all columns; a wider graph stays in one column
};

struct GraphLayout {
  struct Line {
    std::string path;                 // the attribute d of an SVG path
    double label_x = 0, label_y = 0;  // middle
  };
  struct Place {
    double x = 0, y = 0;  // left, top
  };
  std::vector<Place> boxes;
  std::vector<Line> edges;  // by edge: the part that it does not share
  struct Trunk {
    int from = 0;
    std::string path;
  };
  std::vector<Trunk> trunks;  // shared by several edges of a box, or spanning several layers
  double width = 0, height = 0;
};

// Each pair (from, to) at most once, from != to, in [0, boxes).
GraphLayout LayOutGraph(int boxes, const std::vector<LayoutEdge>& edges,
                        const LayoutOptions& options = {});

}  // namespace espalier
