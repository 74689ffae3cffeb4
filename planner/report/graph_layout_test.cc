#include "planner/report/graph_layout.h"

#include <random>

#include "gtest/gtest.h"
#include "planner/report/graph_boxes.h"
#include "planner/report/layered_layout.h"
#include "planner/report/testing.h"

namespace espalier {
namespace {

TEST(PlaceInOrderTest, KeepsOrderAndDistanceAndStaysClose) {
  EXPECT_EQ(PlaceInOrder({0, 100}, {10}), (std::vector<double>{0, 100}));
  EXPECT_EQ(PlaceInOrder({5, 5}, {10}), (std::vector<double>{0, 10}));
  EXPECT_EQ(PlaceInOrder({20, 0}, {10}), (std::vector<double>{5, 15}));
  EXPECT_EQ(PlaceInOrder({}, {}), std::vector<double>{});
  std::mt19937 random(1);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<double> wanted(20), apart(19);
    for (double& w : wanted) w = static_cast<int>(random() % 200);
    for (double& a : apart) a = 1 + static_cast<int>(random() % 20);
    const std::vector<double> placed = PlaceInOrder(wanted, apart);
    for (size_t i = 0; i + 1 < placed.size(); ++i) {
      EXPECT_GE(placed[i + 1] - placed[i], apart[i] - 1e-9);
    }
  }
}

TEST(MakeLayersTest, EdgesLeadDownAndLinesPassEveryLayer) {
  // 0 -> 1 -> 2 -> 3, and 0 -> 3.
  const Layered layered = MakeLayers(4, {{0, 1}, {0, 3}, {1, 2}, {2, 3}});
  ASSERT_EQ(layered.layers.size(), 4u);
  for (int b = 0; b < 4; ++b) EXPECT_EQ(layered.items[b].layer, b);
  EXPECT_EQ(layered.items.size(), 6u);  // passes through two layers
  EXPECT_EQ(layered.items[layered.last_hop[1]].box, -1);
  EXPECT_EQ(layered.items[layered.last_hop[1]].source, 0);
  EXPECT_EQ(layered.last_hop[0], 0);
}

TEST(MakeLayersTest, SourceIsDrawnNextToItsReader) {
  // 4 is read by 3 only.
  const Layered layered = MakeLayers(5, {{0, 1}, {1, 2}, {2, 4}, {3, 4}});
  EXPECT_EQ(layered.items[3].layer, 2);
}

TEST(MakeLayersTest, OrderAvoidsAPlainCrossing) {
  // 0 -> 3 and 1 -> 2, both from left to right.
  const Layered layered = MakeLayers(4, {{0, 3}, {1, 2}});
  EXPECT_EQ(layered.items[0].x < layered.items[1].x, layered.items[3].x < layered.items[2].x);
}

TEST(MakeLayersTest, NeverMoreLinesThanAllowed) {
  std::vector<std::pair<int, int>> edges;
  for (int i = 0; i < 300; ++i) {
    for (int j = i + 1; j < 300; j += 7) edges.emplace_back(i, j);
    if (i > 0) edges.emplace_back(i - 1, i);
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  LayerOptions options;
  options.max_passing = 500;
  const Layered layered = MakeLayers(300, edges, options);
  EXPECT_LE(layered.items.size(), 800u);
  EXPECT_EQ(layered.last_hop.size(), edges.size());
}

TEST(LayOutGraphTest, LongGraphIsFoldedIntoColumns) {
  std::vector<LayoutEdge> edges;
  for (int i = 0; i + 1 < 100; ++i) edges.push_back({i, i + 1, i % 3 == 0});
  const GraphLayout layout = LayOutGraph(100, edges);
  EXPECT_LE(layout.width, 1600);
  EXPECT_LT(layout.height, 100 * 90 / 4);
  std::vector<LayoutEdge> wide;
  for (int i = 1; i < 60; ++i) wide.push_back({0, i, false});
  EXPECT_GT(LayOutGraph(60, wide).width, 59 * 200);  // not folded: the page scrolls
}

TEST(LayOutGraphTest, NothingToDraw) {
  EXPECT_EQ(LayOutGraph(0, {}).boxes.size(), 0u);
  EXPECT_EQ(LayOutGraph(1, {}).boxes.size(), 1u);
}

TEST(BoxesTest, RepeatedLayersAreOneLoop) {
  const BoxGraph boxes = MakeBoxGraph(LayeredPlan(40, 4), LayeredGraph(40));
  ASSERT_TRUE(boxes.collapsed);
  ASSERT_EQ(boxes.boxes.size(), 4u);
  EXPECT_EQ(boxes.boxes[1].name, "layers.0-39.fc");
  EXPECT_EQ(boxes.boxes[1].count, 40);
  EXPECT_EQ(boxes.boxes[1].parameter_bytes, 40.0 * (2 << 20));
  EXPECT_NEAR(boxes.boxes[2].seconds, 40 * 3e-3, 1e-12);
  int back = 0;
  for (const GraphEdge& edge : boxes.edges) {
    back += edge.to_next_layer;
    EXPECT_EQ(edge.to_next_layer, edge.from > edge.to);
    if (edge.to_next_layer) {
      EXPECT_EQ(boxes.boxes[edge.from].name, "layers.0-39.act");
      EXPECT_EQ(boxes.boxes[edge.to].name, "layers.0-39.fc");
      EXPECT_EQ(edge.bytes, 39.0 * (1 << 20));
    }
  }
  EXPECT_EQ(back, 1);
}

// The last layer's first operator is split differently. It is not an edge to the next layer if the
// second operator reads it.
TEST(BoxesTest, OddLayerLeadsIntoTheSharedBox) {
  v1::Plan plan = LayeredPlan(40, 4);
  v1::OperatorPlan* odd = plan.mutable_operators(1 + 2 * 39);
  ASSERT_EQ(odd->node(), "layers.39.fc");
  odd->clear_degrees();
  const BoxGraph boxes = MakeBoxGraph(plan, LayeredGraph(40));
  bool found = false;
  for (const GraphEdge& edge : boxes.edges) {
    if (boxes.boxes[edge.from].name != "layers.39.fc") continue;
    EXPECT_EQ(boxes.boxes[edge.to].name, "layers.0-39.act");
    EXPECT_FALSE(edge.to_next_layer);
    found = true;
  }
  EXPECT_TRUE(found);
}

// The drawing shows every layout conversion of the plan.
TEST(BoxesTest, AllBytesArePlaced) {
  for (int layers : {3, 40}) {
    v1::Plan plan = LayeredPlan(layers, 4);
    v1::ParallelOperator* read = plan.add_parallel_operators();
    read->set_kind(v1::ParallelOperator::REPLICATE);
    read->set_tensor("layers.1.fc.weight");  // comes from no box
    read->set_consumer("layers.1.fc");
    read->set_bytes(4096);
    double planned = 0, drawn = 0;
    for (const v1::ParallelOperator& op : plan.parallel_operators()) planned += op.bytes();
    const BoxGraph boxes = MakeBoxGraph(plan, LayeredGraph(layers));
    for (const GraphBox& box : boxes.boxes) drawn += box.parameter_bytes;
    for (const GraphEdge& edge : boxes.edges) drawn += edge.bytes;
    EXPECT_EQ(planned, drawn);
    EXPECT_GT(planned, 0);
  }
}

}  // namespace
}  // namespace espalier
