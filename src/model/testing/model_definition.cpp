#include "model/testing/model_definition.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

namespace longnet {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;  // one a token

class Definition {
 public:
  Definition(const ModelShape& shape, const AttentionProblem& problem,
             const DilatedPattern& pattern, const std::vector<double>& weights)
      : shape_(shape), p_(problem), pattern_(pattern), parameters_(shape, problem), w_(weights) {}

  double loss_of(const int32_t* tokens) const {
    Rows x;
    for (int64_t t = 0; t < p_.seq_len; ++t) {
      const Parameter& table = parameters_.find("embedding");
      Row row;
      for (int64_t c = 0; c < table.cols; ++c) row.push_back(value(table, tokens[t], c));
      x.push_back(std::move(row));
    }
    for (int64_t l = 0; l < shape_.layers; ++l) layer(concat("layers.", l, "."), x);
    double sum = 0;
    for (int64_t t = 0; t < p_.seq_len; ++t)
      sum += loss_of_row(norm("final_norm", x[size_t(t)]), tokens[t + 1]);
    return sum;
  }

 private:
  double value(const Parameter& p, int64_t row, int64_t col) const {
    return w_[size_t(p.first + row * p.cols + col)];
  }
  Row linear(const std::string& name, const Row& x) const {
    const Parameter& weight = parameters_.find(name + ".weight");
    const Parameter& bias = parameters_.find(name + ".bias");
    Row y(w_.begin() + bias.first, w_.begin() + bias.first + bias.cols);
    for (int64_t i = 0; i < weight.rows; ++i) {
      const double* const row = &w_[size_t(weight.first + i * weight.cols)];
      for (size_t j = 0; j < y.size(); ++j) y[j] += x[size_t(i)] * row[j];
    }
    return y;
  }
  Row norm(const std::string& name, const Row& x) const {
    double mean = 0, variance = 0;
    for (const double v : x) mean += v / double(x.size());
    for (const double v : x) variance += (v - mean) * (v - mean) / double(x.size());
    const Parameter& gain = parameters_.find(name + ".gain");
    const Parameter& bias = parameters_.find(name + ".bias");
    Row y;
    for (size_t i = 0; i < x.size(); ++i)
      y.push_back((x[i] - mean) / std::sqrt(variance + 1e-5) * value(gain, 0, int64_t(i)) +
                  value(bias, 0, int64_t(i)));
    return y;
  }
  // Pairs of values as complex numbers that turn by an angle, times zeta^(+-(t - N/2) / scale).
  Row rotated(Row x, int64_t token, bool keys) const {
    if (shape_.positions == Positions::kNone) return x;
    const double d = double(p_.head_dim);
    for (size_t i = 0; i < x.size(); i += 2) {
      const double pair = double(int64_t(i) % p_.head_dim);  // 2i of xPos
      const double angle = double(token) * std::pow(10000.0, -pair / d);
      double factor = 1;
      if (shape_.positions == Positions::kXpos)
        factor = std::pow((pair / d + 0.4) / 1.4, (keys ? -1 : 1) *
                                                      (double(token) - double(p_.seq_len) / 2) /
                                                      std::max(512.0, double(p_.seq_len) / 32));
      const auto turned = std::complex(x[i], x[i + 1]) * std::polar(factor, angle);
      x[i] = turned.real(), x[i + 1] = turned.imag();
    }
    return x;
  }
  // Returns whether query t of head h sees key s but for the mask: both selected in one segment;
  // with c summary tokens, s one of the c of another segment, h blocks of c before its end.
  static bool sees(const DilatedBranch& branch, int64_t h, int64_t t, int64_t s) {
    const int64_t w = branch.segment_length, r = branch.dilation_rate, c = branch.summary_tokens;
    if (c == 0) return s / w == t / w && t % w % r == h % r && s % w % r == h % r;
    return s / w != t / w && (w - 1 - s % w) / c == h % (w / c);
  }
  Rows attention(const Rows& q, const Rows& k, const Rows& v) const {
    const int64_t d = p_.head_dim;
    Rows out(q.size(), Row(size_t(p_.num_heads * d), 0.0));
    for (int64_t t = 0; t < p_.seq_len; ++t)
      for (int64_t h = 0; h < p_.num_heads; ++h) {
        const int64_t kv = h / (p_.num_heads / p_.num_kv_heads);
        double total = 0;
        for (const auto& branch : pattern_.branches)
          for (int64_t s = 0; s < p_.seq_len; ++s) {
            if ((p_.causal && s > t) || !sees(branch, h, t, s)) continue;
            double score = 0;
            for (int64_t c = 0; c < d; ++c)
              score += q[size_t(t)][size_t(h * d + c)] * k[size_t(s)][size_t(kv * d + c)];
            const double weight = std::exp(score / std::sqrt(double(d)));
            total += weight;
            for (int64_t c = 0; c < d; ++c)
              out[size_t(t)][size_t(h * d + c)] += weight * v[size_t(s)][size_t(kv * d + c)];
          }
        for (int64_t c = 0; c < d && total > 0; ++c) out[size_t(t)][size_t(h * d + c)] /= total;
      }
    return out;
  }
  void layer(const std::string& name, Rows& x) const {
    Rows q, k, v;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row normed = norm(name + "norm", x[t]);
      q.push_back(rotated(linear(name + "query", normed), int64_t(t), false));
      k.push_back(rotated(linear(name + "key", normed), int64_t(t), true));
      v.push_back(linear(name + "value", normed));
    }
    const Rows attended = attention(q, k, v);
    for (size_t t = 0; t < x.size(); ++t) {
      add(linear(name + "out", norm(name + "sub_norm", attended[t])), x[t]);
      Row hidden = linear(name + "fc1", norm(name + "ffn_norm", x[t]));
      for (double& f : hidden) f *= 0.5 * (1 + std::erf(f / std::numbers::sqrt2));
      add(linear(name + "fc2", norm(name + "ffn_sub_norm", hidden)), x[t]);
    }
  }
  static void add(const Row& what, Row& to) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += what[i];
  }
  double loss_of_row(const Row& x, int32_t target) const {
    const Parameter& table = parameters_.find("embedding");
    double total = 0, of_target = 0;
    for (int64_t token = 0; token < table.rows; ++token) {
      double logit = 0;
      for (int64_t c = 0; c < table.cols; ++c) logit += x[size_t(c)] * value(table, token, c);
      total += std::exp(logit);
      if (token == target) of_target = logit;
    }
    return std::log(total) - of_target;
  }

  const ModelShape& shape_;
  const AttentionProblem& p_;
  const DilatedPattern& pattern_;
  Parameters parameters_;
  const std::vector<double>& w_;
};

}  // namespace

double defined_loss(const ModelShape& shape, const AttentionProblem& problem,
                    const DilatedPattern& pattern, const std::vector<double>& weights,
                    const std::vector<int32_t>& tokens) {
  const Definition definition(shape, problem, pattern, weights);
  double sum = 0;
  for (int64_t b = 0; b < problem.batch; ++b)
    sum += definition.loss_of(&tokens[size_t(b * (problem.seq_len + 1))]);
  return sum / double(problem.batch * problem.seq_len);
}

}  // namespace longnet
