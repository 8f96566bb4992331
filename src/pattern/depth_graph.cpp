#include "pattern/depth_graph.h"

#include <algorithm>

namespace longnet {

bool SourceMask::any() const {
  return std::any_of(words.begin(), words.end(), [](uint64_t w) { return w != 0; });
}

SourceMask SourceMask::first(int count) {
  SourceMask mask;
  for (int i = 0; i < count; ++i) mask.set(i);
  return mask;
}

void GroupLists::add(std::span<const int32_t> groups) {
  groups_.insert(groups_.end(), groups.begin(), groups.end());
  ends_.push_back(groups_.size());
}

namespace {

SourceMask union_of(std::span<const int32_t> groups, const std::vector<SourceMask>& heard) {
  SourceMask mask;
  for (const int32_t g : groups) mask |= heard[size_t(g)];
  return mask;
}

struct BatchDepth {
  bool all_heard = false;
  int64_t last_news = 0;  // the last layer in which some target heard from some source
};

// `heard` holds, for each group, the sources that one of its tokens has heard from before the
// layer.
BatchDepth walk_batch(const DepthGraph& graph, std::vector<SourceMask>& heard,
                      const SourceMask& everyone, int64_t& steps_left) {
  BatchDepth out;
  std::vector<SourceMask> next, knows(size_t(graph.targets.size()));
  for (int64_t layer = 1; steps_left > 0; ++layer) {
    steps_left -= graph.targets.total() + 2 * graph.joins.total();
    bool missing = false;
    for (int64_t t = 0; t < graph.targets.size(); ++t) {
      const SourceMask mask = union_of(graph.targets[t], heard);
      if (mask != knows[size_t(t)]) out.last_news = layer;
      knows[size_t(t)] = mask;
      missing = missing || mask != everyone;
    }
    out.all_heard = !missing;
    if (out.all_heard) return out;
    next = heard;
    for (int64_t c = 0; c < graph.joins.size(); ++c) {
      const SourceMask mask = union_of(graph.joins[c], heard);
      for (const int32_t g : graph.joins[c]) next[size_t(g)] |= mask;
    }
    if (next == heard) return out;
    heard.swap(next);
  }
  return out;
}

}  // namespace

DependencyDepth depth_of(const DepthGraph& graph, int64_t max_steps) {
  DependencyDepth out{.layers = graph.isolated_token ? DependencyDepth::kNever : 0,
                      .reachable_layers = 0};
  if (graph.joins.total() > DepthGraph::kMaxSize || graph.num_groups > DepthGraph::kMaxSize)
    return {.layers = graph.isolated_token ? DependencyDepth::kNever : DependencyDepth::kUnknown};
  int64_t steps_left = max_steps;
  const auto count = int64_t(graph.sources.size());
  for (int64_t begin = 0; begin < count; begin += SourceMask::kSources) {
    const auto size = int(std::min<int64_t>(SourceMask::kSources, count - begin));
    std::vector<SourceMask> heard(size_t(graph.num_groups));
    for (int i = 0; i < size; ++i)
      for (const int32_t g : graph.targets[graph.sources[size_t(begin + i)]])
        heard[size_t(g)].set(i);
    const BatchDepth batch = walk_batch(graph, heard, SourceMask::first(size), steps_left);
    // That a token never hears is certain even where the rest takes too long.
    if (steps_left <= 0)
      return {.layers =
                  out.layers == DependencyDepth::kNever ? out.layers : DependencyDepth::kUnknown};
    out.reachable_layers = std::max(out.reachable_layers, batch.last_news);
    if (!batch.all_heard) out.layers = DependencyDepth::kNever;
    if (out.layers != DependencyDepth::kNever) out.layers = out.reachable_layers;
  }
  return out;
}

DependencyDepth causal_depth_of(const CausalGraph& graph, int64_t max_steps) {
  std::vector<int64_t> sources;  // indices, ascending as the tokens
  for (size_t t = 0; t < graph.tokens.size(); ++t)
    if (graph.tokens[t].is_last) sources.push_back(int64_t(t));
  int64_t steps_left = max_steps, depth = 0;
  for (size_t begin = 0; begin < sources.size(); begin += SourceMask::kSources) {
    const size_t size = std::min<size_t>(SourceMask::kSources, sources.size() - begin);
    std::vector<SourceMask> knows(graph.tokens.size());
    for (size_t i = 0; i < size; ++i) knows[size_t(sources[begin + i])].set(int(i));
    for (int64_t layer = 1;; ++layer) {
      steps_left -= 2 * graph.groups.total();
      if (steps_left <= 0) return {};
      std::vector<SourceMask> heard(size_t(graph.num_groups));  // from tokens up to here
      SourceMask earlier;                                       // the sources before this token
      bool missing = false;
      size_t passed = 0;
      for (size_t t = 0; t < graph.tokens.size(); ++t) {
        const auto groups = graph.groups[int64_t(t)];
        const SourceMask known = knows[t];
        for (const int32_t g : groups) heard[size_t(g)] |= known;
        knows[t] |= union_of(groups, heard);
        if (graph.tokens[t].is_first) {
          SourceMask either = knows[t];
          missing = missing || (either |= earlier) != knows[t];
        }
        if (passed < size && sources[begin + passed] == int64_t(t)) earlier.set(int(passed++));
      }
      depth = std::max(depth, layer);
      if (!missing) break;
    }
  }
  return {.layers = depth, .reachable_layers = depth};
}

}  // namespace longnet
