// One query row of attention in double arithmetic, one key at a time: the reference of every other
// path.
//
//   RowOracle row(q);                            // q: head_dim floats
//   row.add_key(k0, v0);  row.add_key(k1, v1);
//   row.finish();                                // o   = (e^s0 v0 + e^s1 v1) / (e^s0 + e^s1)
//                                                // lse = ln(e^s0 + e^s1)
//
// s_i = q . k_i / sqrt(head_dim). Online softmax (Milakov & Gimelshein, arXiv 1805.02867), so that
// millions of keys need no memory. It has no mask: the caller adds the visible keys only, in any
// order. A key that is added twice counts twice (the multiset of a mixture). Without keys o = 0 and
// lse = -inf.
#pragma once
#include <limits>
#include <span>
#include <vector>

namespace longnet {

class RowOracle {
 public:
  struct Row {
    std::vector<double> o;  // [head_dim]
    double lse;             // natural logarithm
  };

  explicit RowOracle(std::span<const float> q) : q_(q.begin(), q.end()), sum_(q.size(), 0.0) {}

  void add_key(const float* k /*[head_dim]*/, const float* v /*[head_dim]*/);
  Row finish() const;

 private:
  std::vector<double> q_;    // [head_dim]
  std::vector<double> sum_;  // [head_dim], sum of exp(s - max_) * v
  double max_ = -std::numeric_limits<double>::infinity();
  double norm_ = 0.0;  // sum of exp(s - max_), at least 1 with a key
};

}  // namespace longnet
