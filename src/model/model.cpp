#include "model/model.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/random.h"

namespace longnet {
namespace {

double xavier(int64_t in, int64_t out) { return std::sqrt(2.0 / double(in + out)); }

}  // namespace

Parameters::Parameters(const ModelShape& shape, const AttentionProblem& p, Scope scope) {
  const int64_t attended = p.num_heads * p.head_dim, keys = p.num_kv_heads * p.head_dim;
  const int64_t width = attended;
  const double magneto = std::sqrt(std::log(2.0 * double(shape.layers)));
  std::vector<Parameter> vectors;
  const auto matrix = [&](const std::string& name, int64_t in, int64_t out, double gain) {
    all_.push_back(
        {.name = name + ".weight", .rows = in, .cols = out, .deviation = gain * xavier(in, out)});
    vectors.push_back({.name = name + ".bias", .cols = out});
  };
  const auto norm = [&](const std::string& name, int64_t cols) {
    vectors.push_back({.name = name + ".gain", .cols = cols, .value = 1});
    vectors.push_back({.name = name + ".bias", .cols = cols});
  };
  if (scope == Scope::kModel)
    all_.push_back({.name = "embedding",
                    .rows = shape.vocabulary,
                    .cols = width,
                    .deviation = 1 / std::sqrt(double(width))});
  for (int64_t l = 0; l < shape.layers; ++l) {
    const std::string layer = concat("layers.", l, ".");
    norm(layer + "norm", width);
    matrix(layer + "query", width, attended, 1);
    matrix(layer + "key", width, keys, 1);
    matrix(layer + "value", width, keys, magneto);
    norm(layer + "sub_norm", attended);
    matrix(layer + "out", attended, width, magneto);
    norm(layer + "ffn_norm", width);
    matrix(layer + "fc1", width, shape.ffn_width, magneto);
    norm(layer + "ffn_sub_norm", shape.ffn_width);
    matrix(layer + "fc2", shape.ffn_width, width, magneto);
  }
  if (scope == Scope::kModel) norm("final_norm", width);
  const size_t matrices = all_.size();
  all_.insert(all_.end(), vectors.begin(), vectors.end());
  for (size_t i = 0; i < all_.size(); ++i) {
    if (i == matrices) matrices_ = count_;
    all_[i].first = count_;
    count_ += all_[i].count();
  }
}

const Parameter& Parameters::find(std::string_view name) const {
  const auto found = std::ranges::find(all_, name, &Parameter::name);
  check(found != all_.end(), "a model has no parameter ", name);
  return *found;
}

const Parameter& Parameters::find(int64_t layer, std::string_view name) const {
  return find(concat("layers.", layer, ".", name));
}

void Parameters::initialise(std::span<float> values, uint64_t seed) const {
  check(int64_t(values.size()) >= count_, "no place for ", count_, " parameters");
  for (size_t i = 0; i < all_.size(); ++i) {
    const Parameter& p = all_[i];
    for (int64_t k = 0; k < p.count(); k += 4) {
      const PhiloxBlock block = row_words({seed, Tensor::kQuery, k / 4, int64_t(i) & 0xFFFF}, 0);
      for (int64_t j = k; j < std::min(k + 4, p.count()); ++j) {
        const float normal = p.deviation > 0 ? unit_normal_like(block.word[j - k]) : 0.0f;
        values[size_t(p.first + j)] = float(p.value) + float(p.deviation) * normal;
      }
    }
  }
}

}  // namespace longnet
