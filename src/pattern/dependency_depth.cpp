#include "pattern/dependency_depth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

#include "pattern/depth_graph.h"
#include "pattern/token_classes.h"

namespace longnet {
namespace {

using Key = std::vector<int64_t>;

// The classes of an interval that matter for the depth. A class that is in fewer groups than
// another of the same interval hears later and is heard later: the smallest decide the depth. The
// largest join the most.
struct IntervalType {
  std::vector<std::vector<int32_t>> smallest, largest;  // offsets per branch
  bool isolated_token = false;
};

bool within(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {  // a is a subset of b
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != kNoOffset && a[i] != b[i]) return false;
  return true;
}

IntervalType interval_type(const std::vector<TokenClass>& classes) {
  IntervalType type;
  std::vector<const std::vector<int32_t>*> joined;
  for (const TokenClass& c : classes) {
    if (std::ranges::count(c.offsets, kNoOffset) == std::ssize(c.offsets))
      type.isolated_token = true;
    else
      joined.push_back(&c.offsets);
  }
  for (const auto* mine : joined) {
    const auto smaller = [&](const auto* other) { return other != mine && within(*other, *mine); };
    const auto larger = [&](const auto* other) { return other != mine && within(*mine, *other); };
    if (std::ranges::none_of(joined, smaller)) type.smallest.push_back(*mine);
    if (std::ranges::none_of(joined, larger)) type.largest.push_back(*mine);
  }
  return type;
}

// The intervals as a tree. Level d takes the branch with the d-th longest segments away; each set
// of intervals that the branches of deeper levels still connect is one child, and a leaf is one
// interval. Children of equal content (interval types, and segments of the branches above) are
// interchangeable: swapping two leaves the graph as it is. Two of each are kept: whatever a path
// between two tokens crosses in a third one, it can cross in the one that holds either end. Where
// source and target lie in different ones, one of each is enough at the levels below.
//   N = 2^30, w = 2048, 2^27 and N: 524288 intervals become a few dozen.
class SegmentTree {
 public:
  explicit SegmentTree(BranchLayout& layout)
      : layout_(layout),
        borders_(layout.borders()),
        order_(layout.num_branches()),
        first_segment_(order_.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::ranges::stable_sort(order_, std::greater{},
                             [&](size_t b) { return layout.rows(b).segment_length(); });
    root_ = with_children({}, 0, 0, borders_.size() - 1);
  }

  DepthGraph graph() {
    DepthGraph out;
    base_.resize(order_.size());
    expand_children(root_, 0, true, out);
    return out;
  }

 private:
  struct Node {
    int64_t segments = 0;                           // number of segments of this level's branch
    std::vector<std::pair<int, int64_t>> children;  // index of a node, copies of it to keep
    int type = -1;                                  // interval type of a leaf
    std::vector<int64_t> segment_of;                // leaf: segment per level, from node's first
  };

  // Intervals [lo, hi).
  int build(size_t level, size_t lo, size_t hi) {
    if (level == order_.size()) return leaf(lo);
    const BranchRows& rows = layout_.rows(order_[level]);
    first_segment_[level] = rows.segment_of(borders_[lo]);
    Node node;
    node.segments = rows.segment_of(borders_[hi] - 1) - first_segment_[level] + 1;
    return intern(Key{int64_t(level)}, with_children(std::move(node), level + 1, lo, hi));
  }

  // Cuts [lo, hi) where all branches of `level` and deeper begin a segment.
  Node with_children(Node node, size_t level, size_t lo, size_t hi) {
    std::map<int, int64_t> copies;  // copies of each child, by its index
    for (size_t begin = lo; begin < hi;) {
      size_t end = begin + 1;
      while (end < hi && !separates(level, borders_[end])) ++end;
      ++copies[build(level, begin, end)];
      begin = end;
    }
    for (const auto& [child, count] : copies)
      node.children.emplace_back(child, std::min<int64_t>(count, 2));
    return node;
  }

  bool separates(size_t level, int64_t border) const {
    for (size_t l = level; l < order_.size(); ++l)
      if (border % layout_.rows(order_[l]).segment_length() != 0) return false;
    return true;
  }

  int leaf(size_t interval) {
    const TokenInterval tokens{borders_[interval], borders_[interval + 1]};
    Node node;
    node.type = type_of(layout_.classes(tokens));
    Key key{-1, node.type};
    for (size_t l = 0; l < order_.size(); ++l) {
      node.segment_of.push_back(layout_.rows(order_[l]).segment_of(tokens.begin) -
                                first_segment_[l]);
      key.push_back(node.segment_of.back());
    }
    return intern(key, std::move(node));
  }

  // Classes found at the same place of the cache, or equal ones, have one type.
  int type_of(const std::vector<TokenClass>& classes) {
    const auto seen = type_at_.find(&classes);
    if (seen != type_at_.end()) return seen->second;
    Key key;
    for (const TokenClass& c : classes) key.insert(key.end(), c.offsets.begin(), c.offsets.end());
    const auto [place, fresh] = type_by_content_.emplace(key, int(types_.size()));
    if (fresh) types_.push_back(interval_type(classes));
    type_at_.emplace(&classes, place->second);
    return place->second;
  }

  int intern(Key key, Node node) {
    for (const auto& [child, copies] : node.children) {
      key.push_back(child);
      key.push_back(copies);
    }
    const auto [place, fresh] = node_by_content_.emplace(key, int(nodes_.size()));
    if (fresh) nodes_.push_back(std::move(node));
    return place->second;
  }

  void expand(int index, size_t level, bool of_sources, DepthGraph& out) {
    const Node& node = nodes_[size_t(index)];
    if (out.joins.total() > DepthGraph::kMaxSize || out.num_groups > DepthGraph::kMaxSize) return;
    if (level == order_.size()) return emit(node, of_sources, out);
    base_[level] = out.num_groups;
    out.num_groups += node.segments * layout_.dilations()[order_[level]].num_offsets;
    expand_children(node, level + 1, of_sources, out);
  }

  void expand_children(const Node& node, size_t level, bool of_sources, DepthGraph& out) {
    for (const auto& [child, copies] : node.children)
      for (int64_t copy = 0; copy < copies; ++copy) {
        if (copy > 0 && !of_sources) break;
        expand(child, level, of_sources && copy == 0, out);
      }
  }

  void emit(const Node& node, bool of_sources, DepthGraph& out) const {
    const IntervalType& type = types_[size_t(node.type)];
    out.isolated_token = out.isolated_token || type.isolated_token;
    for (const auto& offsets : type.largest) out.joins.add(groups_of(node, offsets));
    for (const auto& offsets : type.smallest) {
      if (of_sources) out.sources.push_back(int32_t(out.targets.size()));
      out.targets.add(groups_of(node, offsets));
    }
  }

  std::vector<int32_t> groups_of(const Node& leaf, const std::vector<int32_t>& offsets) const {
    std::vector<int32_t> groups;
    for (size_t l = 0; l < order_.size(); ++l) {
      const int32_t o = offsets[order_[l]];
      if (o == kNoOffset) continue;
      const int64_t offsets_here = layout_.dilations()[order_[l]].num_offsets;
      groups.push_back(int32_t(base_[l] + leaf.segment_of[l] * offsets_here + o));
    }
    return groups;
  }

  BranchLayout& layout_;
  std::vector<int64_t> borders_;
  std::vector<size_t> order_;           // branches, longest segments first
  std::vector<int64_t> first_segment_;  // per level, of the node being built
  std::vector<int64_t> base_;           // per level, first group of the node being expanded
  std::vector<Node> nodes_;
  std::vector<IntervalType> types_;
  std::unordered_map<const void*, int> type_at_;
  std::map<Key, int> type_by_content_, node_by_content_;
  Node root_;  // no branch: its children share no group
};

// True when neighbours share a group: necessary, as nothing lies between them, and sufficient.
bool neighbours_share_groups(const BranchLayout& layout, const std::vector<int64_t>& borders) {
  const auto& d = layout.dilations();
  const bool whole = std::ranges::any_of(d, [](const Dilation& b) { return b.rate == 1; });
  if (!whole && int64_t(borders.size()) - 1 < layout.seq_len()) return false;
  for (size_t i = 1; i + 1 < borders.size(); ++i)
    if (!layout.same_group(borders[i] - 1, borders[i])) return false;
  return true;
}

DependencyDepth causal_depth(BranchLayout& layout, const DepthOptions& options) {
  const std::vector<int64_t> borders = layout.borders();
  if (!neighbours_share_groups(layout, borders)) return {.layers = DependencyDepth::kNever};
  std::vector<int64_t> base;
  CausalGraph graph;
  for (size_t b = 0; b < layout.num_branches(); ++b) {
    base.push_back(graph.num_groups);
    graph.num_groups += layout.rows(b).num_segments() * layout.dilations()[b].num_offsets;
  }
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    struct Outermost {
      CausalToken token;
      const TokenClass* of;
    };
    std::vector<Outermost> here;
    for (const TokenClass& c : layout.classes({borders[i], borders[i + 1]})) {
      here.push_back({{borders[i] + c.first, true, c.first == c.last}, &c});
      if (c.first < c.last) here.push_back({{borders[i] + c.last, false, true}, &c});
    }
    std::ranges::sort(here, {}, [](const Outermost& o) { return o.token.position; });
    for (const Outermost& o : here) {
      std::vector<int32_t> groups;
      for (size_t b = 0; b < base.size(); ++b)
        if (o.of->offsets[b] != kNoOffset)
          groups.push_back(int32_t(
              base[b] + layout.rows(b).segment_of(borders[i]) * layout.dilations()[b].num_offsets +
              o.of->offsets[b]));
      graph.tokens.push_back(o.token);
      graph.groups.add(groups);
    }
  }
  return causal_depth_of(graph, options.max_steps, options.progress);
}

// Depth of the Sparse Transformer's fixed pattern: one layer within a segment, two into another one
// by way of the own segment's summary tokens.
DependencyDepth sparse_depth(const AttentionProblem& problem, const DilatedPattern& pattern) {
  const DilatedBranch& local = pattern.branches.front();
  const DilatedBranch& summary = pattern.branches.back();
  if (pattern.branches.size() != 2 || local.summary_tokens > 0 || local.dilation_rate != 1 ||
      local.segment_length != summary.segment_length)
    return {};
  const int64_t w = summary.segment_length;
  // The heads' sub-blocks cover the end of a segment from here on.
  const int64_t begin =
      w - summary.summary_tokens *
              count_offsets(pattern.offset, problem.num_heads, num_offsets(summary));
  if (problem.seq_len <= w || begin <= 0) return {.layers = 1, .reachable_layers = 1};
  const int64_t last_length = problem.seq_len - (problem.seq_len - 1) / w * w;
  if (problem.causal || last_length > begin) return {.layers = 2, .reachable_layers = 2};
  return {.layers = DependencyDepth::kNever, .reachable_layers = 2};  // the last segment is unheard
}

}  // namespace

DependencyDepth dependency_depth(const AttentionProblem& problem, const DilatedPattern& pattern,
                                 const DepthOptions& options) {
  check_pattern(pattern, problem);
  if (problem.seq_len == 1) return {.layers = 0, .reachable_layers = 0};
  if (std::ranges::any_of(pattern.branches, [](const auto& b) { return b.summary_tokens > 0; }))
    return sparse_depth(problem, pattern);
  BranchLayout layout(problem, pattern);
  for (size_t b = 0; b < layout.num_branches(); ++b)
    if (layout.dilations()[b].rate == 1 && layout.rows(b).num_segments() == 1)
      return {.layers = 1, .reachable_layers = 1};
  if (layout.count_borders() > options.max_intervals) return {};
  if (problem.causal) return causal_depth(layout, options);
  return depth_of(SegmentTree(layout).graph(), options.max_steps, options.progress);
}

double paper_depth_bound(const DilatedPattern& pattern, int64_t seq_len) {
  std::set<int64_t> lengths;
  for (const DilatedBranch& b : pattern.branches) {
    if (b.summary_tokens > 0) return std::numeric_limits<double>::quiet_NaN();
    lengths.insert(std::min(b.segment_length, seq_len));
  }
  if (lengths.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const auto shortest = double(*lengths.begin()), longest = double(*lengths.rbegin());
  const double ratio = std::pow(longest / shortest, 1 / double(lengths.size() - 1));
  return std::max(1.0, std::log(double(seq_len) * (ratio - 1) / shortest) / std::log(ratio));
}

}  // namespace longnet
