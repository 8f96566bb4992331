#include "kernels/testing/reference_model_kernel.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "core/random.h"
#include "kernels/model_checks.h"

namespace longnet {
namespace {

double value_at(const Matrix& x, int64_t i, int64_t j) {
  const int64_t at = i * x.stride + j;
  return x.dtype == DType::kFloat32 ? double(static_cast<const float*>(x.data)[at])
                                    : double(bf16_value(static_cast<const uint16_t*>(x.data)[at]));
}

void store(const Matrix& x, int64_t i, int64_t j, double value) {
  const int64_t at = i * x.stride + j;
  if (x.dtype == DType::kFloat32)
    static_cast<float*>(x.data)[at] = float(value);
  else
    static_cast<uint16_t*>(x.data)[at] = bf16_bits(float(value));
}

// Calls body(i, j) for each element of x.
template <class Body>
void for_each(const Matrix& x, const Body& body) {
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t j = 0; j < x.cols; ++j) body(i, j);
}

// Row i of x, normalised but for gain and bias; returns 1 / sqrt(variance + epsilon).
double normalise(const auto& task, int64_t i, std::vector<double>& normal) {
  const Matrix& x = task.x;
  const double n = double(x.cols);
  double mean = 0, variance = 0;
  for (int64_t j = 0; j < x.cols; ++j) mean += value_at(x, i, j) / n;
  for (int64_t j = 0; j < x.cols; ++j) variance += std::pow(value_at(x, i, j) - mean, 2) / n;
  if (const RowParts& m = task.moments; m.parts > 0) {
    const double parts = double(m.parts);
    mean = variance = 0;
    for (int64_t p = 0; p < m.parts; ++p) mean += double(m.at(p, i)[0]) / parts;
    for (int64_t p = 0; p < m.parts; ++p)
      variance += (double(m.at(p, i)[1]) / n + std::pow(double(m.at(p, i)[0]) - mean, 2)) / parts;
  }
  const double factor = 1 / std::sqrt(variance + task.epsilon);
  normal.resize(size_t(x.cols));
  for (int64_t j = 0; j < x.cols; ++j) normal[size_t(j)] = (value_at(x, i, j) - mean) * factor;
  return factor;
}

double normal_below(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }  // Phi
double normal_density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI); }

void run_task(const GemmTask& task) {
  for_each(task.c, [&](int64_t i, int64_t j) {
    double sum = task.accumulate ? value_at(task.c, i, j) : 0;
    if (task.bias != nullptr) sum += double(task.bias[j]);
    for (int64_t l = 0; l < task.k(); ++l)
      sum += (task.transpose_a ? value_at(task.a, l, i) : value_at(task.a, i, l)) *
             (task.transpose_b ? value_at(task.b, j, l) : value_at(task.b, l, j));
    store(task.c, i, j, sum);
  });
}

void run_task(const AddColumnsTask& task) {
  for (int64_t j = 0; j < task.x.cols; ++j) {
    double sum = double(task.into[j]);
    for (int64_t i = 0; i < task.x.rows; ++i) sum += value_at(task.x, i, j);
    task.into[j] = float(sum);
  }
}

void run_task(const LayerNormTask& task) {
  std::vector<double> normal;
  for (int64_t i = 0; i < task.x.rows; ++i) {
    normalise(task, i, normal);
    for (int64_t j = 0; j < task.x.cols; ++j)
      store(task.y, i, j, normal[size_t(j)] * double(task.gain[j]) + double(task.bias[j]));
  }
}

void run_task(const RowMomentsTask& task) {
  const Matrix& x = task.x;
  for (int64_t i = 0; i < x.rows; ++i) {
    double mean = 0, squares = 0;
    for (int64_t j = 0; j < x.cols; ++j) mean += value_at(x, i, j) / double(x.cols);
    for (int64_t j = 0; j < x.cols; ++j) squares += std::pow(value_at(x, i, j) - mean, 2);
    task.into[2 * i] = float(mean), task.into[2 * i + 1] = float(squares);
  }
}

void run_task(const LayerNormSumsTask& task) {
  std::vector<double> normal;
  for (int64_t i = 0; i < task.x.rows; ++i) {
    normalise(task, i, normal);
    double sum = 0, sum_normal = 0;
    for (int64_t j = 0; j < task.x.cols; ++j) {
      const double g = value_at(task.grad_y, i, j) * double(task.gain[j]);
      sum += g, sum_normal += g * normal[size_t(j)];
    }
    task.into[2 * i] = float(sum), task.into[2 * i + 1] = float(sum_normal);
  }
}

void run_task(const LayerNormBackwardTask& task) {
  const size_t n = size_t(task.x.cols);
  std::vector<double> normal, grad(n), gain_sum(n), bias_sum(n);
  for (int64_t i = 0; i < task.x.rows; ++i) {
    const double factor = normalise(task, i, normal);
    double mean = 0, mean_normal = 0;  // means of grad, and of grad * normal
    for (size_t j = 0; j < n; ++j) {
      const double grad_y = value_at(task.grad_y, i, int64_t(j));
      gain_sum[j] += grad_y * normal[j];
      bias_sum[j] += grad_y;
      grad[j] = grad_y * double(task.gain[j]);
      mean += grad[j] / double(n);
      mean_normal += grad[j] * normal[j] / double(n);
    }
    if (const RowParts& sums = task.sums; sums.parts > 0) {
      mean = mean_normal = 0;
      const double all = double(int64_t(n) * sums.parts);
      for (int64_t p = 0; p < sums.parts; ++p)
        mean += double(sums.at(p, i)[0]) / all, mean_normal += double(sums.at(p, i)[1]) / all;
    }
    for (size_t j = 0; j < n; ++j) {
      const double before = task.accumulate ? value_at(task.grad_x, i, int64_t(j)) : 0;
      store(task.grad_x, i, int64_t(j),
            before + factor * (grad[j] - mean - normal[j] * mean_normal));
    }
  }
  for (size_t j = 0; j < n; ++j) {
    task.grad_gain[j] = float(double(task.grad_gain[j]) + gain_sum[j]);
    task.grad_bias[j] = float(double(task.grad_bias[j]) + bias_sum[j]);
  }
}

void run_task(const GeluTask& task) {
  for_each(task.x, [&](int64_t i, int64_t j) {
    const double v = value_at(task.x, i, j);
    store(task.y, i, j, v * normal_below(v));
  });
}

void run_task(const GeluBackwardTask& task) {
  for_each(task.x, [&](int64_t i, int64_t j) {
    const double v = value_at(task.x, i, j), slope = normal_below(v) + v * normal_density(v);
    store(task.grad_x, i, j, value_at(task.grad_y, i, j) * slope);
  });
}

void run_task(const RotateTask& task) {
  const double d = double(task.head_dim);
  for_each(task.x, [&](int64_t i, int64_t j) {
    const int64_t pair = j % task.head_dim;  // 2i of the formulas, where even
    if (pair % 2 != 0) return;
    const double position = double(task.positions[i]);
    const double angle =
        (task.inverse_angle ? -1 : 1) * position * std::pow(1e4, -double(pair) / d);
    const double power = (task.negative_power ? -1 : 1) * (position - task.xpos_centre);
    const double factor = task.xpos_scale == 0
                              ? 1
                              : std::pow((double(pair) / d + 0.4) / 1.4, power / task.xpos_scale);
    const double even = value_at(task.x, i, j), odd = value_at(task.x, i, j + 1);
    store(task.x, i, j, factor * (even * std::cos(angle) - odd * std::sin(angle)));
    store(task.x, i, j + 1, factor * (even * std::sin(angle) + odd * std::cos(angle)));
  });
}

void run_task(const AddTask& task) {
  for_each(task.x, [&](int64_t i, int64_t j) {
    store(task.y, i, j, value_at(task.y, i, j) + value_at(task.x, i, j));
  });
}

void run_task(const EmbedTask& task) {
  for_each(task.y, [&](int64_t i, int64_t j) {
    store(task.y, i, j, value_at(task.table, task.tokens[i], j));
  });
}

void run_task(const EmbedBackwardTask& task) {
  std::map<int32_t, std::vector<int64_t>> rows_of;  // by token
  for (int64_t i = 0; i < task.grad_y.rows; ++i) rows_of[task.tokens[i]].push_back(i);
  for (const auto& [token, rows] : rows_of)
    for (int64_t j = 0; j < task.grad_y.cols; ++j) {
      double sum = value_at(task.grad_table, token, j);
      for (const int64_t i : rows) sum += value_at(task.grad_y, i, j);
      store(task.grad_table, token, j, sum);
    }
}

void run_task(const CrossEntropyTask& task) {
  const Matrix& x = task.logits;
  double loss = 0;
  for (int64_t i = 0; i < x.rows; ++i) {
    const int32_t target = task.targets[i];
    double max = value_at(x, i, 0), sum = 0;
    for (int64_t j = 1; j < x.cols; ++j) max = std::max(max, value_at(x, i, j));
    for (int64_t j = 0; j < x.cols; ++j) sum += std::exp(value_at(x, i, j) - max);
    if (target >= 0) loss += std::log(sum) + max - value_at(x, i, target);
    for (int64_t j = 0; j < x.cols; ++j) {
      const double share = std::exp(value_at(x, i, j) - max) / sum;
      store(x, i, j, target < 0 ? 0 : (share - (j == target ? 1 : 0)) * double(task.scale));
    }
  }
  *task.loss += loss;
}

void run_task(const UpdateTask& task) {
  const double step = double(task.schedule[0]), learning_rate = double(task.schedule[1]);
  const double correction1 = 1 - std::pow(task.beta1, step);
  const double correction2 = 1 - std::pow(task.beta2, step);
  const double clipping = clipping_of(task);
  for (int64_t i = 0; i < task.count; ++i) {
    const double g = double(task.gradient[i]) * clipping, w = double(task.weights[i]);
    const double m = task.beta1 * double(task.first_moment[i]) + (1 - task.beta1) * g;
    const double v = task.beta2 * double(task.second_moment[i]) + (1 - task.beta2) * g * g;
    const double direction = m / correction1 / (std::sqrt(v / correction2) + task.epsilon);
    task.first_moment[i] = float(m);
    task.second_moment[i] = float(v);
    task.weights[i] = float(w - learning_rate * (direction + task.decay * w));
  }
}

void run_task(const SumOfSquaresTask& task) {
  double sum = 0;
  for (int64_t i = 0; i < task.count; ++i) sum += double(task.x[i]) * double(task.x[i]);
  *task.into += sum;
}

class ReferenceModelKernel final : public ModelKernel {
 public:
  std::string_view name() const override { return "reference"; }
  int64_t workspace_bytes(int) const override { return 0; }
  void run(const ModelTask& task, int, std::span<std::byte>) const override {
    std::visit([](const auto& what) { check_task(what), check_values(what), run_task(what); },
               task);
  }
};

}  // namespace

std::unique_ptr<ModelKernel> make_reference_model_kernel() {
  return std::make_unique<ReferenceModelKernel>();
}

}  // namespace longnet
