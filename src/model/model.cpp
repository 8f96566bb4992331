#include "model/model.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/random.h"

namespace longnet {
namespace {

double xavier(int64_t in, int64_t out) { return std::sqrt(2.0 / double(in + out)); }

}  // namespace

Parameters::Parameters(const ModelShape& shape, const AttentionProblem& p, Scope scope,
                       HeadGroup part) {
  const int64_t attended = p.num_heads * p.head_dim, keys = p.num_kv_heads * p.head_dim;
  const int64_t width = attended * part.count, ffn = shape.ffn_width / part.count;
  const double magneto = std::sqrt(std::log(2.0 * double(shape.layers)));
  std::vector<Parameter> vectors;
  const auto columns = [&](const std::string& name, int64_t out, double gain) {
    all_.push_back({.name = name + ".weight",
                    .rows = width,
                    .cols = out,
                    .deviation = gain * xavier(width, out * part.count),
                    .all_cols = out * part.count,
                    .from = out * part.index,
                    .is_split = true});
    vectors.push_back(
        {.name = name + ".bias", .cols = out, .from = out * part.index, .is_split = true});
  };
  const auto rows = [&](const std::string& name, int64_t in, double gain) {
    all_.push_back({.name = name + ".weight",
                    .rows = in,
                    .cols = width,
                    .deviation = gain * xavier(in * part.count, width),
                    .all_cols = width,
                    .from = in * part.index * width,
                    .is_split = true});
    vectors.push_back({.name = name + ".bias", .cols = width});
  };
  const auto norm = [&](const std::string& name, int64_t cols, bool is_split = false) {
    Parameter vector{.name = name + ".gain",
                     .cols = cols,
                     .value = 1,
                     .from = is_split ? cols * part.index : 0,
                     .is_split = is_split};
    vectors.push_back(vector);
    vector.name = name + ".bias", vector.value = 0;
    vectors.push_back(vector);
  };
  if (scope == Scope::kModel)
    all_.push_back({.name = "embedding",
                    .rows = shape.vocabulary,
                    .cols = width,
                    .deviation = 1 / std::sqrt(double(width)),
                    .all_cols = width});
  for (int64_t l = 0; l < shape.layers; ++l) {
    const std::string layer = concat("layers.", l, ".");
    norm(layer + "norm", width);
    columns(layer + "query", attended, 1);
    columns(layer + "key", keys, 1);
    columns(layer + "value", keys, magneto);
    norm(layer + "sub_norm", attended, true);
    rows(layer + "out", attended, magneto);
    norm(layer + "ffn_norm", width);
    columns(layer + "fc1", ffn, magneto);
    norm(layer + "ffn_sub_norm", ffn, true);
    rows(layer + "fc2", ffn, magneto);
  }
  if (scope == Scope::kModel) norm("final_norm", width);
  if (part.count > 1) std::ranges::stable_partition(vectors, &Parameter::is_split);
  const size_t matrices = all_.size();
  all_.insert(all_.end(), vectors.begin(), vectors.end());
  for (size_t i = 0; i < all_.size(); ++i) {
    if (i == matrices) matrices_ = count_;
    index_[all_[i].name] = i;
    all_[i].first = count_;
    count_ += all_[i].count();
  }
}

const Parameter& Parameters::find(std::string_view name) const {
  const auto found = index_.find(name);
  check(found != index_.end(), "a model has no parameter ", name);
  return all_[found->second];
}

std::vector<TokenInterval> Parameters::shared() const {
  std::vector<TokenInterval> out;
  for (const Parameter& p : all_) {
    if (p.is_split) continue;
    if (!out.empty() && out.back().end == p.first)
      out.back().end += p.count();
    else
      out.push_back({p.first, p.first + p.count()});
  }
  return out;
}

void Parameters::initialise(std::span<float> values, uint64_t seed) const {
  check(int64_t(values.size()) >= count_, "no place for ", count_, " parameters");
  for (size_t i = 0; i < all_.size(); ++i) {
    const Parameter& p = all_[i];
    const std::span<float> own = values.subspan(size_t(p.first), size_t(p.count()));
    std::ranges::fill(own, float(p.value));
    if (p.deviation == 0) continue;
    for (int64_t row = 0; row < p.rows; ++row) {
      PhiloxBlock block{};
      for (int64_t col = 0; col < p.cols; ++col) {
        const int64_t k = p.from + row * p.all_cols + col;  // index in the whole matrix
        if (col == 0 || k % 4 == 0)
          block = row_words({seed, Tensor::kQuery, k / 4, int64_t(i) & 0xFFFF}, 0);
        own[size_t(row * p.cols + col)] += float(p.deviation) * unit_normal_like(block.word[k % 4]);
      }
    }
  }
}

}  // namespace longnet
