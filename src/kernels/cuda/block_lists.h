// Tiles for blocks that stay on their multiprocessors and do a list each.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "core/check.h"

namespace longnet {

// Tiles are given, in order, each to the block with the least to do so far: neighbours in that
// order run at the same time and share their rows in the L2 cache. The last few tiles of each block
// are given longest first, so that all blocks end together.
//
//   5 tiles of cost 4 4 3 2 1 on 2 blocks: block 0 does 4 and 3, block 1 does 4, 2 and 1
template <class Tile>
class BlockLists {
 public:
  explicit BlockLists(int blocks) : blocks_(blocks) {}
  void add(const Tile& tile, int64_t cost) { given_.push_back({tile, cost}); }
  // Fills the list of tiles, block by block: block b does [begin[b], begin[b + 1]). Blocks without
  // tiles are left out.
  void finish(std::vector<Tile>& tiles, std::vector<int32_t>& begin) {
    const auto last = std::min(std::ssize(given_), std::ptrdiff_t{2} * blocks_);
    std::stable_sort(given_.end() - last, given_.end(),
                     [](const Given& a, const Given& b) { return a.cost > b.cost; });
    begin.push_back(0);
    for (const auto& of_block : lists()) {
      if (of_block.empty()) continue;
      tiles.insert(tiles.end(), of_block.begin(), of_block.end());
      check(tiles.size() < (size_t{1} << 31), "too many tiles for one launch: ", tiles.size());
      begin.push_back(int32_t(tiles.size()));
    }
  }

 private:
  struct Given {
    Tile tile;
    int64_t cost;
  };
  std::vector<std::vector<Tile>> lists() const {
    using Load = std::pair<int64_t, int>;  // cost of the tiles so far, block
    std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
    for (int b = 0; b < blocks_; ++b) least.emplace(0, b);
    auto of_block = std::vector<std::vector<Tile>>(size_t(blocks_));
    for (const Given& given : given_) {
      const auto [load, block] = least.top();
      least.pop();
      of_block[size_t(block)].push_back(given.tile);
      least.emplace(load + given.cost, block);
    }
    return of_block;
  }

  int blocks_;
  std::vector<Given> given_;
};

}  // namespace longnet
