// A pool of slots in a vector: an engine makes and ends millions of small objects.
#pragma once
#include <cstdint>
#include <vector>

namespace longnet {

// Returns the index of a slot: one of `free`, else a new one. Push the index to `free` after its
// use.
template <class T>
uint32_t take_slot(std::vector<T>& pool, std::vector<uint32_t>& free) {
  if (free.empty()) {
    pool.emplace_back();
    return uint32_t(pool.size()) - 1;
  }
  const uint32_t id = free.back();
  free.pop_back();
  return id;
}

}  // namespace longnet
