// Options that one algorithm or another reads; 0 where it chooses itself (head_slice: all at once). src/io/axes.cpp holds the
// row of each: where it is read from, which algorithms read it, what it is called in tables.
#pragma once
#include <cstdint>

namespace longnet {

struct AlgorithmOptions {
  int ulysses_degree = 0;  // usp: ranks that exchange heads (Pu)
  int ring_inner = 0;      // double_ring: ranks of an inner ring (Pi)
  int64_t head_slice = 0;  // all_gather: K/V heads gathered at a time; 0: all
  bool operator==(const AlgorithmOptions&) const = default;
};

}  // namespace longnet
