// A Transformer decoder as LongNet trains it (arXiv 2307.02486, section 3; Magneto, arXiv
// 2210.06423; xPos, arXiv 2212.10554): its shape and its parameters.
//
//   x = embedding[tokens]
//   layer:  x += out(sub_norm(attention(rotate(q(norm(x))), rotate(k(norm(x))), v(norm(x)))))
//           x += fc2(sub_norm(gelu(fc1(norm(x)))))
//   loss:   cross entropy of norm(x) embedding^T
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model_shape.h"
#include "schedule/sharded_problem.h"

namespace longnet {

// A weight matrix, stored [in][out], or a vector of one row: values first, first + 1, ... of all.
struct Parameter {
  std::string name;
  int64_t rows = 1, cols = 0, first = 0;
  // Initial values are normal with this standard deviation about `value`; 0: all equal `value`.
  double deviation = 0, value = 0;
  // Row i begins at value from + i * all_cols of the whole parameter. Where ranks split it, each
  // has a block of it.
  int64_t all_cols = 0, from = 0;
  bool is_split = false;
  int64_t count() const { return rows * cols; }
};

// One of `count` ranks that split heads and the feed-forward network.
struct HeadGroup {
  int index = 0, count = 1;
};

// Parameters, one behind the other: first matrices, which decay, then vectors. One layer alone has
// those of "layers.0". A rank with some of the heads has columns of q, k, v and fc1, with their
// biases and the sub-norms behind them, and rows of out and fc2; all of the others, vectors last.
class Parameters {
 public:
  // `problem`: of the heads that are here.
  Parameters(const ModelShape& shape, const AttentionProblem& problem, Scope scope = Scope::kModel,
             HeadGroup part = {});
  std::span<const Parameter> all() const { return all_; }
  // "embedding", "final_norm.gain", "layers.0.query.weight", "layers.0.query.bias", ...
  const Parameter& find(std::string_view name) const;
  int64_t count() const { return count_; }
  int64_t matrices() const { return matrices_; }  // values of matrices
  // Values that ranks with other heads have as well, as intervals.
  std::vector<TokenInterval> shared() const;
  // The initial values, the same on every rank: a standard normal from core/random.h times the
  // deviation of Xavier (Glorot and Bengio, 2010), of Magneto times sqrt(ln(2 layers)) for v, out,
  // fc1 and fc2.
  void initialise(std::span<float> values, uint64_t seed) const;

 private:
  std::vector<Parameter> all_;
  std::map<std::string, size_t, std::less<>> index_;  // into all_, by name
  int64_t count_ = 0, matrices_ = 0;
};

}  // namespace longnet
