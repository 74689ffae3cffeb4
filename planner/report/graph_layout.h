// Where the boxes and lines of a graph lie on the page. Layers run downwards; a long graph is
// folded into columns, as a newspaper is, so that it fits a page.
#pragma once

#include <string>
#include <vector>

namespace espalier {

struct LayoutEdge {
  int from = 0, to = 0;  // from > to: leads back, and is drawn at the side
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
  std::vector<Line> edges;  // of each edge the part that is its own
  struct Trunk {
    int from = 0;
    std::string path;
  };
  std::vector<Trunk> trunks;  // what several edges of a box share, or passes several layers
  double width = 0, height = 0;
};

// Each pair (from, to) at most once, from != to, in [0, boxes).
GraphLayout LayOutGraph(int boxes, const std::vector<LayoutEdge>& edges,
                        const LayoutOptions& options = {});

}  // namespace espalier
