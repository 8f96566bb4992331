// Speeds of a kernel of attention as rows of a cluster file have them: seconds per (query, key)
// pair over keys a query and head_dim.
//
// It is read as a + b / keys (each query costs something besides its keys: prologue, tail, the
// masked half of diagonal tiles) and as c + e head_dim (exponentials, then products), by lines
// through its rows; beyond its ends by the same lines, where they rise towards short rows and small
// heads. What is read there is a guess, and marked (covers).
//
//   rows of 1024 and 4096 keys at head_dim 64 and 128: 2048 keys at 96 lie a third of the way from
//   1 / 4096 to 1 / 1024, between both heads; 512 keys, 8192, and head_dim 32 and 256 lie outside.
#pragma once
#include <utility>
#include <vector>

namespace longnet {

class KernelTable {
 public:
  void add(double keys, double head_dim, double seconds_per_pair);
  bool empty() const { return curves_.empty(); }
  double read(double keys, double head_dim) const;  // seconds per pair; of a table with rows
  // True between its rows: as many keys or fewer, or more, and so for head_dim. `longer`: as if
  // there were rows of any more keys.
  bool covers(double keys, double head_dim, bool longer = false) const;

 private:
  struct Curve {  // over keys, at one head_dim
    double head_dim;
    std::vector<std::pair<double, double>> points;  // 1 / keys, seconds per pair; ascending
    double at(double keys) const;
    bool covers(double keys, bool longer) const;
  };
  std::vector<Curve> curves_;  // by head_dim
};

// The value at x of the line through (x0, y0) and (x1, y1); y0 when x0 = x1.
inline double interpolate(double x, double x0, double y0, double x1, double y1) {
  return x1 == x0 ? y0 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

}  // namespace longnet
