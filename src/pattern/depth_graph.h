// Groups and the classes of tokens that join them: the graph that dependency_depth searches.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "pattern/dependency_depth.h"

namespace longnet {

// Lists of group indices, back to back.
class GroupLists {
 public:
  void add(std::span<const int32_t> groups);
  // Returns for each of `num_groups` groups the lists that hold it.
  GroupLists inverse(int64_t num_groups) const;
  int64_t size() const { return int64_t(ends_.size()); }
  int64_t total() const { return int64_t(groups_.size()); }
  std::span<const int32_t> operator[](int64_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[size_t(i) - 1];
    return {groups_.data() + begin, ends_[size_t(i)] - begin};
  }

 private:
  std::vector<int32_t> groups_;
  std::vector<size_t> ends_;
};

struct DepthGraph {
  // Groups, or entries of `joins`: beyond, depth_of gives up (about 1 GB).
  static constexpr int64_t kMaxSize = int64_t{1} << 23;
  int64_t num_groups = 0;
  bool isolated_token = false;   // some token is in no group
  GroupLists joins;              // classes of tokens through which groups hear from one another
  GroupLists targets;            // classes that must hear from every source
  std::vector<int32_t> sources;  // indices of the targets that represent all sources
};

// Breadth-first from every source, 256 at once: O(layers * (joins + targets) * sources / 256).
// Searches from single sources first give bounds on the depth of the others, which exclude many.
DependencyDepth depth_of(const DepthGraph& graph, int64_t max_steps,
                         const DepthProgress& progress = {});

// Graph with a causal mask, where every interval is one group and every token has heard from the
// one before it: `tokens` are the outermost tokens of each class in ascending order.
struct CausalToken {
  int64_t position = 0;
  bool is_first = false, is_last = false;  // first or last token of its class
};
struct CausalGraph {
  int64_t num_groups = 0;
  std::vector<CausalToken> tokens;
  GroupLists groups;  // groups of each token
};
DependencyDepth causal_depth_of(const CausalGraph& graph, int64_t max_steps,
                                const DepthProgress& progress = {});

}  // namespace longnet
