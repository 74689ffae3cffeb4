#include "planner/report/layered_layout.h"

#include <algorithm>
#include <map>

namespace espalier {
namespace {

std::vector<int> LongestPathLayers(int boxes, const std::vector<std::pair<int, int>>& edges) {
  std::vector<std::vector<int>> below(boxes);
  std::vector<int> layer(boxes, 0), inputs(boxes, 0);
  for (const auto& [from, to] : edges) {
    below[from].push_back(to);
    ++inputs[to];
  }
  for (int b = 0; b < boxes; ++b) {
    for (int to : below[b]) layer[to] = std::max(layer[to], layer[b] + 1);
  }
  // Small inputs that are read late are drawn next to their reader, which shortens lines.
  for (int b = boxes - 1; b >= 0; --b) {
    if (below[b].empty() || inputs[b] > static_cast<int>(below[b].size())) continue;
    int lowest = layer[below[b][0]];
    for (int to : below[b]) lowest = std::min(lowest, layer[to]);
    layer[b] = lowest - 1;
  }
  return layer;
}

void Join(int above, int below, Layered* out) {
  std::vector<int>& known = out->items[above].below;
  if (std::find(known.begin(), known.end(), below) != known.end()) return;
  known.push_back(below);
  out->items[below].above.push_back(above);
}

void AddLines(const std::vector<std::pair<int, int>>& edges, const LayerOptions& options,
              Layered* out) {
  std::map<std::pair<int, int>, int> passing;  // (source, layer) -> item
  for (const auto& [from, to] : edges) {
    const int first = out->items[from].layer + 1, last = out->items[to].layer;
    if (last - first > options.max_passing - static_cast<int>(passing.size())) {
      out->last_hop.push_back(-1);
      continue;
    }
    int hop = from;
    for (int l = first; l < last; ++l) {
      const auto [it, inserted] =
          passing.try_emplace({from, l}, static_cast<int>(out->items.size()));
      if (inserted) {
        LayerItem item;
        item.source = from;
        item.layer = l;
        item.width = options.line_width;
        out->layers[l].push_back(it->second);
        out->items.push_back(item);
      }
      Join(hop, it->second, out);
      hop = it->second;
    }
    Join(hop, to, out);
    out->last_hop.push_back(hop);
  }
}

double MeanPosition(const std::vector<int>& neighbors, const std::vector<double>& position) {
  double sum = 0;
  for (int n : neighbors) sum += position[n];
  return sum / static_cast<double>(neighbors.size());
}

void OrderByBarycenters(int sweeps, Layered* out) {
  std::vector<double> position(out->items.size());
  auto number = [&](const std::vector<int>& layer) {
    for (size_t i = 0; i < layer.size(); ++i) position[layer[i]] = static_cast<double>(i);
  };
  for (const std::vector<int>& layer : out->layers) number(layer);
  const int n = static_cast<int>(out->layers.size());
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    const bool down = sweep % 2 == 0;
    for (int i = 1; i < n; ++i) {
      std::vector<int>& layer = out->layers[down ? i : n - 1 - i];
      for (int item : layer) {
        const auto& neighbors = down ? out->items[item].above : out->items[item].below;
        if (!neighbors.empty()) position[item] = MeanPosition(neighbors, position);
      }
      std::stable_sort(layer.begin(), layer.end(),
                       [&](int a, int b) { return position[a] < position[b]; });
      number(layer);
    }
  }
}

void PlaceLayer(const LayerOptions& options, const std::vector<double>& wanted,
                const std::vector<int>& layer, Layered* out) {
  std::vector<double> apart;
  for (size_t i = 0; i + 1 < layer.size(); ++i) {
    const LayerItem &a = out->items[layer[i]], &b = out->items[layer[i + 1]];
    apart.push_back((a.width + b.width) / 2 +
                    (a.box < 0 || b.box < 0 ? options.gap / 2 : options.gap));
  }
  const std::vector<double> x = PlaceInOrder(wanted, apart);
  for (size_t i = 0; i < layer.size(); ++i) out->items[layer[i]].x = x[i];
}

void PlaceAll(const LayerOptions& options, Layered* out) {
  for (const std::vector<int>& layer : out->layers) {
    PlaceLayer(options, std::vector<double>(layer.size(), 0), layer, out);
  }
  const int n = static_cast<int>(out->layers.size());
  for (int sweep = 0; sweep < options.sweeps; ++sweep) {
    for (int i = 0; i < n; ++i) {
      const std::vector<int>& layer = out->layers[sweep % 2 == 0 ? i : n - 1 - i];
      std::vector<double> wanted;
      for (int item : layer) {
        const LayerItem& it = out->items[item];
        double sum = 0;
        for (int a : it.above) sum += out->items[a].x;
        for (int b : it.below) sum += out->items[b].x;
        const size_t count = it.above.size() + it.below.size();
        wanted.push_back(count == 0 ? it.x : sum / static_cast<double>(count));
      }
      PlaceLayer(options, wanted, layer, out);
    }
  }
}

}  // namespace

std::vector<double> PlaceInOrder(const std::vector<double>& wanted,
                                 const std::vector<double>& apart) {
  // After subtracting the distances this is isotonic regression (pool adjacent violators).
  struct Pool {
    double sum = 0;
    int count = 0;
    double mean() const { return sum / count; }
  };
  std::vector<Pool> pools;
  std::vector<double> offset(wanted.size(), 0);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (i > 0) offset[i] = offset[i - 1] + apart[i - 1];
    pools.push_back({wanted[i] - offset[i], 1});
    while (pools.size() > 1 && pools[pools.size() - 2].mean() > pools.back().mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back().sum += last.sum;
      pools.back().count += last.count;
    }
  }
  std::vector<double> out;
  for (const Pool& pool : pools) {
    for (int i = 0; i < pool.count; ++i) out.push_back(pool.mean() + offset[out.size()]);
  }
  return out;
}

Layered MakeLayers(int boxes, const std::vector<std::pair<int, int>>& edges,
                   const LayerOptions& options) {
  Layered out;
  const std::vector<int> layer = LongestPathLayers(boxes, edges);
  for (int b = 0; b < boxes; ++b) {
    LayerItem item;
    item.box = item.source = b;
    item.layer = layer[b];
    item.width = options.box_width;
    if (item.layer >= static_cast<int>(out.layers.size())) out.layers.resize(item.layer + 1);
    out.layers[item.layer].push_back(b);
    out.items.push_back(item);
  }
  AddLines(edges, options, &out);
  OrderByBarycenters(options.sweeps, &out);
  PlaceAll(options, &out);
  return out;
}

}  // namespace espalier
