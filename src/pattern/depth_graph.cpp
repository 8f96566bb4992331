#include "pattern/depth_graph.h"

#include <algorithm>
#include <bitset>
#include <limits>
#include <numeric>

namespace longnet {

void GroupLists::add(std::span<const int32_t> groups) {
  groups_.insert(groups_.end(), groups.begin(), groups.end());
  ends_.push_back(groups_.size());
}

GroupLists GroupLists::inverse(int64_t num_groups) const {
  GroupLists out;
  out.groups_.resize(groups_.size());
  std::vector<size_t> at(size_t(num_groups) + 1);  // place of the next list of each group
  for (const int32_t g : groups_) ++at[size_t(g) + 1];
  std::partial_sum(at.begin(), at.end(), at.begin());
  out.ends_.assign(at.begin() + 1, at.end());
  for (int64_t i = 0; i < size(); ++i)
    for (const int32_t g : (*this)[i]) out.groups_[at[size_t(g)]++] = int32_t(i);
  return out;
}

namespace {

// A set of up to 256 sources, which are searched from at once.
constexpr size_t kSources = 256;
using SourceMask = std::bitset<kSources>;

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
BatchDepth search_batch(const DepthGraph& graph, std::vector<SourceMask>& heard,
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

// One source at a time, its layer counts for all targets: O(joins + targets) whatever the depth.
class SingleSearch {
 public:
  explicit SingleSearch(const DepthGraph& graph)
      : graph_(graph), members_(graph.joins.inverse(graph.num_groups)) {}

  // Layers until each target has heard from the target `source` (at least 1, as in search_batch);
  // kNever where it does not.
  const std::vector<int32_t>& layers_from(int64_t source) {
    group_layer_.assign(size_t(graph_.num_groups), kUnheard);
    join_done_.assign(size_t(graph_.joins.size()), false);
    queue_.clear();
    const auto reach = [&](int32_t group, int32_t layer) {
      if (group_layer_[size_t(group)] != kUnheard) return;
      group_layer_[size_t(group)] = layer;
      queue_.push_back(group);
    };
    for (const int32_t g : graph_.targets[source]) reach(g, 1);
    for (size_t i = 0; i < queue_.size(); ++i) {
      const int32_t group = queue_[i], layer = group_layer_[size_t(group)];
      for (const int32_t join : members_[group]) {
        if (join_done_[size_t(join)]) continue;
        join_done_[size_t(join)] = true;
        for (const int32_t g : graph_.joins[join]) reach(g, layer + 1);
      }
    }
    layers_.resize(size_t(graph_.targets.size()));
    for (int64_t t = 0; t < graph_.targets.size(); ++t) {
      int32_t nearest = kUnheard;
      for (const int32_t g : graph_.targets[t])
        nearest = std::min(nearest, group_layer_[size_t(g)]);
      layers_[size_t(t)] = nearest;
    }
    return layers_;
  }

  static constexpr int32_t kUnheard = std::numeric_limits<int32_t>::max();

 private:
  const DepthGraph& graph_;
  GroupLists members_;
  std::vector<int32_t> group_layer_, queue_, layers_;
  std::vector<bool> join_done_;
};

// Sources that may still be further from some target than any source looked at. Hearing is mutual,
// so that layers are a metric: a token `near` layers from a source whose furthest target is `far`
// layers away has its own furthest target at most near + far and at least max(near, far - near)
// layers away (Takes and Kosters, Algorithms 6 (2013) 100: bounding eccentricities).
class OpenSources {
 public:
  explicit OpenSources(const DepthGraph& graph) : search_(graph) {
    for (const int32_t s : graph.sources) open_.push_back({s, 1, SingleSearch::kUnheard});
  }

  int64_t size() const { return int64_t(open_.size()); }
  int64_t furthest() const { return furthest_; }
  bool all_heard() const { return all_heard_; }
  std::vector<int32_t> sources() const {
    std::vector<int32_t> out;
    for (const Source& s : open_) out.push_back(s.target);
    return out;
  }

  // Looks at one source and closes all that cannot be further: the one with the highest upper bound
  // and the one with the lowest lower bound in turn, which raise and cut the bounds most.
  void narrow() {
    const auto key = [&](const Source& s) {
      return high_turn_ ? std::pair(-int64_t{s.upper}, -int64_t{s.lower})
                        : std::pair(int64_t{s.lower}, int64_t{s.upper});
    };
    const auto pick = std::ranges::min_element(open_, {}, key);
    high_turn_ = !high_turn_;
    const int32_t picked = pick->target;
    const std::vector<int32_t>& layers = search_.layers_from(picked);
    int32_t far = 1;
    for (const int32_t l : layers)
      if (l != SingleSearch::kUnheard)
        far = std::max(far, l);
      else
        all_heard_ = false;
    furthest_ = std::max<int64_t>(furthest_, far);
    std::erase_if(open_, [&](Source& s) {
      if (s.target == picked) return true;
      const int32_t near = layers[size_t(s.target)];
      if (near != SingleSearch::kUnheard) {
        s.lower = std::max({s.lower, near, far - near});
        s.upper = std::min(s.upper, far + near);
      }
      return s.upper <= furthest_;
    });
  }

 private:
  struct Source {
    int32_t target, lower, upper;
  };
  SingleSearch search_;
  std::vector<Source> open_;
  int64_t furthest_ = 0;
  bool all_heard_ = true, high_turn_ = true;
};

}  // namespace

DependencyDepth depth_of(const DepthGraph& graph, int64_t max_steps,
                         const DepthProgress& progress) {
  if (graph.joins.total() > DepthGraph::kMaxSize || graph.num_groups > DepthGraph::kMaxSize)
    return {.layers = graph.isolated_token ? DependencyDepth::kNever : DependencyDepth::kUnknown};
  OpenSources open(graph);
  const int64_t all = open.size(), visits = graph.targets.total() + 2 * graph.joins.total();
  int64_t steps_left = max_steps;
  // Result where the search takes too long: kNever is certain even then.
  const auto too_long = [&] {
    return DependencyDepth{.layers = graph.isolated_token || !open.all_heard()
                                         ? DependencyDepth::kNever
                                         : DependencyDepth::kUnknown};
  };
  // A search from one source costs about four visits by a batch in every layer divided by the
  // layers: go on while it closes more sources than a batch would take in that time.
  constexpr int64_t kTrial = 8, kCostOfVisit = 4;
  for (bool worthwhile = true; worthwhile && open.size() > 0;) {
    const int64_t before = open.size();
    for (int64_t i = 0; i < kTrial && open.size() > 0; ++i) {
      if (steps_left <= 0) return too_long();
      steps_left -= visits;
      open.narrow();
    }
    if (progress) progress(double(all - open.size()) / double(all));
    worthwhile =
        (before - open.size()) * open.furthest() > kTrial * kCostOfVisit * int64_t{kSources};
  }
  int64_t furthest = open.furthest();
  bool all_heard = open.all_heard() && !graph.isolated_token;
  const std::vector<int32_t> rest = open.sources();
  for (size_t begin = 0; begin < rest.size(); begin += kSources) {
    const size_t size = std::min<size_t>(kSources, rest.size() - begin);
    std::vector<SourceMask> heard(size_t(graph.num_groups));
    for (size_t i = 0; i < size; ++i)
      for (const int32_t g : graph.targets[rest[begin + i]]) heard[size_t(g)].set(i);
    const BatchDepth batch =
        search_batch(graph, heard, ~SourceMask() >> (kSources - size), steps_left);
    if (steps_left <= 0)
      return all_heard ? too_long() : DependencyDepth{.layers = DependencyDepth::kNever};
    furthest = std::max(furthest, batch.last_news);
    all_heard = all_heard && batch.all_heard;
    if (progress) progress(double(all - int64_t(rest.size() - begin - size)) / double(all));
  }
  return {.layers = all_heard ? furthest : DependencyDepth::kNever, .reachable_layers = furthest};
}

DependencyDepth causal_depth_of(const CausalGraph& graph, int64_t max_steps,
                                const DepthProgress& progress) {
  std::vector<int64_t> sources;  // indices, ascending as the tokens
  for (size_t t = 0; t < graph.tokens.size(); ++t)
    if (graph.tokens[t].is_last) sources.push_back(int64_t(t));
  int64_t steps_left = max_steps, depth = 0;
  for (size_t begin = 0; begin < sources.size(); begin += kSources) {
    const size_t size = std::min<size_t>(kSources, sources.size() - begin);
    std::vector<SourceMask> knows(graph.tokens.size());
    for (size_t i = 0; i < size; ++i) knows[size_t(sources[begin + i])].set(i);
    for (int64_t layer = 1;; ++layer) {
      steps_left -= 2 * graph.groups.total();
      if (steps_left <= 0) return {};
      std::vector<SourceMask> heard(size_t(graph.num_groups));  // by tokens up to here
      SourceMask earlier;                                       // the sources before this token
      bool missing = false;
      size_t passed = 0;
      for (size_t t = 0; t < graph.tokens.size(); ++t) {
        const auto groups = graph.groups[int64_t(t)];
        const SourceMask known = knows[t];
        for (const int32_t g : groups) heard[size_t(g)] |= known;
        knows[t] |= union_of(groups, heard);
        if (graph.tokens[t].is_first) {
          missing = missing || (knows[t] | earlier) != knows[t];
        }
        if (passed < size && sources[begin + passed] == int64_t(t)) earlier.set(passed++);
      }
      depth = std::max(depth, layer);
      if (!missing) break;
    }
    if (progress) progress(double(begin + size) / double(sources.size()));
  }
  return {.layers = depth, .reachable_layers = depth};
}

}  // namespace longnet
