// Tiles for blocks that stay on their multiprocessors and do a list each.
#pragma once
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "core/check.h"

namespace longnet {

// Tiles are given, in order, each to the block with the least to do so far: neighbours in that
// order run at the same time and share their rows in the L2 cache.
//
//   5 tiles of cost 4 4 3 2 1 on 2 blocks: block 0 does 4 and 3, block 1 does 4, 2 and 1
template <class Tile>
class BlockLists {
 public:
  explicit BlockLists(int blocks) : of_block_(size_t(blocks)) {
    for (int b = 0; b < blocks; ++b) least_.emplace(0, b);
  }
  void add(const Tile& tile, int64_t cost) {
    const auto [load, block] = least_.top();
    least_.pop();
    of_block_[size_t(block)].push_back(tile);
    least_.emplace(load + cost, block);
  }
  // Fills the list of tiles, block by block: block b does [begin[b], begin[b + 1]). Blocks without
  // tiles are left out.
  void finish(std::vector<Tile>& tiles, std::vector<int32_t>& begin) const {
    begin.push_back(0);
    for (const auto& of_block : of_block_) {
      if (of_block.empty()) continue;
      tiles.insert(tiles.end(), of_block.begin(), of_block.end());
      check(tiles.size() < (size_t{1} << 31), "too many tiles for one launch: ", tiles.size());
      begin.push_back(int32_t(tiles.size()));
    }
  }

 private:
  using Load = std::pair<int64_t, int>;  // cost of the tiles so far, block
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least_;
  std::vector<std::vector<Tile>> of_block_;
};

}  // namespace longnet
