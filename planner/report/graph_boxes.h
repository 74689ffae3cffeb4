// Boxes and edges of the graph drawing, before layout.
#pragma once

#include <string>
#include <vector>

#include "espalier/v1/plan.pb.h"
#include "ops/graph/graph.h"
#include "planner/report/machine_views.h"

namespace espalier {

// An operator, or an operator of several layers that the plan treats alike. Text is not escaped.
struct GraphBox {
  std::string name;  // "layers.0-7.mlp"
  std::string op;
  std::string split;
  std::string devices;
  int view = -1;  // in BoxGraph::views; -1: the plan does not place it
  double seconds = 0;
  int count = 0;                   // operators
  std::vector<std::string> notes;  // layout conversions of parameters, inputs and gradients
  double parameter_bytes = 0;      // moved by these conversions per step
};

struct GraphEdge {
  int from = 0, to = 0;
  bool to_next_layer = false;      // a back edge in a drawing of repeated layers
  std::string change;              // "combine", "combine + partition"; empty: none
  double bytes = 0;                // moved by the conversion per step
  std::vector<std::string> notes;  // tensors and their conversions
};

struct BoxGraph {
  std::vector<GraphBox> boxes;   // in topological order, except for edges to the next layer
  std::vector<GraphEdge> edges;  // one per pair of boxes
  ViewTable views;
  bool collapsed = false;  // repeated layers share a box
  int operators = 0;       // of the forward graph
  int left_out = 0;        // of these, omitted because there are too many
  int edges_left_out = 0;
  int unknown = 0;  // operators of the plan that the graph does not have
};

struct BoxOptions {
  int collapse_above = 64;  // operators; smaller graphs are not collapsed
  int max_boxes = 320;
  int max_edges = 800;
};

// Time and memory are linear in graph and plan, up to logarithms.
BoxGraph MakeBoxGraph(const v1::Plan& plan, const Graph& graph, const BoxOptions& options = {});

}  // namespace espalier
