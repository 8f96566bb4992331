#include "kernels/reference/row_oracle.h"

#include <cmath>

namespace longnet {

void RowOracle::add_key(const float* k, const float* v) {
  double score = 0;
  for (size_t c = 0; c < q_.size(); ++c) score += q_[c] * k[c];
  score /= std::sqrt(double(q_.size()));

  if (score > max_) {
    const double shrink = std::exp(max_ - score);  // exp(-inf) = 0 at the first key
    for (double& x : sum_) x *= shrink;
    norm_ *= shrink;
    max_ = score;
  }
  const double weight = std::exp(score - max_);
  for (size_t c = 0; c < q_.size(); ++c) sum_[c] += weight * v[c];
  norm_ += weight;
}

RowOracle::Row RowOracle::finish() const {
  Row row{.o = sum_, .lse = -std::numeric_limits<double>::infinity()};
  if (norm_ == 0) return row;
  for (double& x : row.o) x /= norm_;
  row.lse = max_ + std::log(norm_);
  return row;
}

}  // namespace longnet
