// gpu_check: every function of a model's layers against the reference in double, twice, which must
// agree in every bit. Gaps behind rows stay as they are. Products are in check_gemm.cpp.
#include <algorithm>
#include <cmath>
#include <functional>

#include "core/check.h"
#include "gpu/check.h"
#include "gpu/numbers.h"
#include "kernels/cuda/device_model.h"
#include "kernels/testing/reference_model_kernel.h"

namespace longnet::gpu {
namespace {

constexpr DType kWide = DType::kFloat32, kNarrow = DType::kBFloat16;

using Task = std::function<ModelTask(Place)>;

struct Output {
  const char* name;
  Numbers* numbers;
};

// Returns the distance of two matrices, or the largest relative difference of two lists of doubles.
// Infinite where a gap behind a row has changed.
double distance_of(Numbers& expected, std::vector<std::byte>& bytes) {
  if (expected.shape().rows == 0) {
    double off = 0;
    const auto *const x = reinterpret_cast<const double*>(bytes.data()), *const y =
                                                                             expected.at<double>(
                                                                                 Place::kHost);
    for (size_t i = 0; i < bytes.size() / sizeof(double); ++i)
      off = std::max(off, x[i] == y[i] ? 0 : std::abs(x[i] - y[i]) / std::abs(y[i]));
    return off;
  }
  Matrix got = expected.shape();
  got.data = bytes.data();
  std::vector<float> a, b;
  for (int64_t i = 0; i < got.rows; ++i) {
    const std::vector<float> x = stored_row(got, i),
                             y = stored_row(expected.matrix(Place::kHost), i);
    if (!std::equal(x.begin() + got.cols, x.end(), y.begin() + got.cols)) return INFINITY;
    a.insert(a.end(), x.begin(), x.begin() + got.cols);
    b.insert(b.end(), y.begin(), y.begin() + got.cols);
  }
  return distance(a, b);
}

class ModelCheck {
 public:
  ModelCheck(Outcome& out, std::string what) : out_(out), what_(std::move(what)) {}

  Numbers normal(int64_t rows, int64_t cols, DType dtype, int64_t gap = 8) {
    return Numbers::normal(rows, cols, ++seed_, dtype, ledger_, gap);
  }
  Numbers vector(int64_t count) { return normal(1, count, kWide); }
  template <class T>
  Numbers list(const std::vector<T>& values) {
    return Numbers(values, ledger_);
  }
  // Runs the task in both places; `tolerance`: of outputs in fp32, those in bf16 are rounded.
  void compare(const Task& task, std::initializer_list<Output> outputs, double tolerance = 2e-6) {
    run(task, outputs);
    const auto first = bytes_of(outputs);
    for (const Output& o : outputs) o.numbers->upload();
    run(task, outputs);
    auto second = bytes_of(outputs);
    out_.expect(first == second, concat(what_, ": not the same bits in two launches"));
    make_reference_model_kernel()->run(task(Place::kHost), 1);
    size_t n = 0;
    for (const Output& o : outputs) {
      const double off = distance_of(*o.numbers, second[n++]);
      const bool rounded = o.numbers->shape().dtype == kNarrow;
      if (!rounded) out_.worst = std::max(out_.worst, off);
      out_.expect(off <= (rounded ? 4e-3 : tolerance),
                  concat(what_, ", ", o.name, ": off by ", off));
    }
  }

 private:
  void run(const Task& task, std::initializer_list<Output>) {
    const Prepared work = prepare_model_task(task(Place::kDevice), ledger_);
    const Stream stream;
    for (const DeviceBuffer& scratch : work.workspaces())
      stream.fill(scratch.data(), 0xFF, scratch.size());
    work.launch(stream);
    stream.synchronize();
  }
  static std::vector<std::vector<std::byte>> bytes_of(std::initializer_list<Output> outputs) {
    std::vector<std::vector<std::byte>> all;
    for (const Output& o : outputs) all.push_back(o.numbers->downloaded());
    return all;
  }

  Outcome& out_;
  std::string what_;
  MemoryLedger ledger_;
  uint32_t seed_ = 0;
};

struct Shape {
  int64_t rows, cols, gap = 8;
  std::string text() const { return concat(rows, " x ", cols, " gap ", gap); }
};

void check_single_numbers(Outcome& out, const Shape& s, DType dtype) {
  const auto of = [&](const char* name) {
    return ModelCheck(out, concat(name, " of ", s.text(), " ", to_string(dtype)));
  };
  {
    ModelCheck check = of("gelu");
    Numbers x = check.normal(s.rows, s.cols, dtype, s.gap),
            y = check.normal(s.rows, s.cols, dtype, s.gap);
    check.compare([&](Place p) { return GeluTask{x.matrix(p), y.matrix(p)}; }, {{"y", &y}});
  }
  {
    ModelCheck check = of("gelu_backward, in place");
    Numbers x = check.normal(s.rows, s.cols, dtype, s.gap),
            grad = check.normal(s.rows, s.cols, dtype, s.gap);
    check.compare(
        [&](Place p) {
          return GeluBackwardTask{x.matrix(p), grad.matrix(p), grad.matrix(p)};
        },
        {{"grad_x", &grad}});
  }
  {
    ModelCheck check = of("add");
    Numbers x = check.normal(s.rows, s.cols, dtype, s.gap),
            y = check.normal(s.rows, s.cols, dtype, s.gap);
    check.compare([&](Place p) { return AddTask{x.matrix(p), y.matrix(p)}; }, {{"y", &y}});
  }
  {
    ModelCheck check = of("add_columns");
    Numbers x = check.normal(s.rows, s.cols, dtype, s.gap), into = check.vector(s.cols);
    check.compare(
        [&](Place p) {
          return AddColumnsTask{x.matrix(p), into.at<float>(p)};
        },
        {{"into", &into}});
  }
}

// Tokens of which some are frequent, as in text.
std::vector<int32_t> tokens_of(int64_t rows, int64_t vocabulary) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < rows; ++i) {
    const uint32_t word = philox4x32_10({{uint32_t(i), 7, 7, 7}}, 3, 5).word[0];
    tokens.push_back(int32_t(word % 3 == 0 ? vocabulary / 2 : word / 3 % uint32_t(vocabulary)));
  }
  return tokens;
}

void check_embedding(Outcome& out, const Shape& s, int64_t vocabulary, DType dtype) {
  const std::vector<int32_t> tokens = tokens_of(s.rows, vocabulary);
  for (const bool backward : {false, true}) {
    ModelCheck check(out, concat(backward ? "embed_backward" : "embed", " of ", s.text(), " ",
                                 to_string(dtype), ", ", vocabulary, " tokens"));
    Numbers list = check.list(tokens), table = check.normal(vocabulary, s.cols, kWide, s.gap),
            rows = check.normal(s.rows, s.cols, dtype, s.gap);
    const auto task = [&](Place p) -> ModelTask {
      const auto* const at = list.at<int32_t>(p);
      if (backward) return EmbedBackwardTask{at, rows.matrix(p), table.matrix(p)};
      return EmbedTask{at, table.matrix(p), rows.matrix(p)};
    };
    check.compare(task, {{"result", backward ? &table : &rows}});
  }
}

// Checks layer normalisation of whole rows or, with `split`, of one of two parts of the columns, as
// ranks that split heads have them.
void check_norm(Outcome& out, const Shape& s, DType of_x, DType of_y, bool split) {
  const std::string what = concat(" of ", s.text(), " ", to_string(of_x), " to ", to_string(of_y),
                                  split ? ", a part of the columns" : "");
  const auto with = [&](const char* name, const auto& body) {
    ModelCheck check(out, name + what);
    Numbers x = check.normal(s.rows, s.cols, of_x, s.gap), gain = check.vector(s.cols),
            bias = check.vector(s.cols), moments = check.normal(2, 2 * s.rows, kWide),
            sums = check.normal(2, 2 * s.rows, kWide),
            y = check.normal(s.rows, s.cols, of_y, s.gap),
            grad = check.normal(s.rows, s.cols, of_y, s.gap);
    for (int64_t i = 0; i < s.rows; ++i)  // sums of squares
      for (int64_t part = 0; part < 2; ++part) {
        float& squares = moments.at<float>(Place::kHost)[part * moments.shape().stride + 2 * i + 1];
        squares = (1 + std::abs(squares)) * float(s.cols);
      }
    moments.upload();
    const auto parts = [&](Numbers& of, Place p) {
      return split ? RowParts{of.at<float>(p), 2, of.shape().stride} : RowParts{};
    };
    body(
        check, x, y, grad, gain, bias, [&](Place p) { return parts(moments, p); },
        [&](Place p) { return parts(sums, p); });
  };
  with("layer_norm", [](auto& check, auto& x, auto& y, auto&, auto& gain, auto& bias,
                        const auto& moments, const auto&) {
    check.compare(
        [&](Place p) {
          return LayerNormTask{.x = x.matrix(p),
                               .y = y.matrix(p),
                               .gain = gain.template at<float>(p),
                               .bias = bias.template at<float>(p),
                               .moments = moments(p)};
        },
        {{"y", &y}});
  });
  for (const bool accumulate : {false, true})
    with(accumulate ? "layer_norm_backward, added," : "layer_norm_backward",
         [&](auto& check, auto& x, auto& y, auto& grad, auto& gain, auto& bias, const auto& moments,
             const auto& sums) {
           Numbers grad_gain = check.vector(s.cols);
           Numbers& into = accumulate ? y : grad;
           check.compare(
               [&](Place p) {
                 return LayerNormBackwardTask{.x = x.matrix(p),
                                              .grad_y = grad.matrix(p),
                                              .grad_x = into.matrix(p),
                                              .gain = gain.template at<float>(p),
                                              .grad_gain = grad_gain.at<float>(p),
                                              .grad_bias = bias.template at<float>(p),
                                              .accumulate = accumulate,
                                              .moments = moments(p),
                                              .sums = sums(p)};
               },
               {{"grad_x", &into}, {"grad_gain", &grad_gain}, {"grad_bias", &bias}});
         });
  with(split ? "layer_norm_sums" : "row_moments",
       [&](auto& check, auto& x, auto&, auto& grad, auto& gain, auto&, const auto& moments,
           const auto&) {
         Numbers into = check.vector(2 * s.rows);
         check.compare(
             [&](Place p) -> ModelTask {
               auto* const at = into.at<float>(p);
               if (!split) return RowMomentsTask{x.matrix(p), at};
               return LayerNormSumsTask{.x = x.matrix(p),
                                        .grad_y = grad.matrix(p),
                                        .gain = gain.template at<float>(p),
                                        .moments = moments(p),
                                        .into = at};
             },
             {{"into", &into}});
       });
}

void check_rotate(Outcome& out, int64_t rows, int64_t heads, int64_t head_dim, int64_t gap,
                  DType dtype) {
  int way = 0;
  for (const TokenRange& positions : {TokenRange{0, 1, rows}, TokenRange{(1 << 20) + 3, 4, rows}}) {
    ModelCheck check(out, concat("rotate of ", rows, " rows, ", heads, " heads of ", head_dim,
                                 " gap ", gap, " ", to_string(dtype), " from ", positions.first));
    Numbers x = check.normal(rows, heads * head_dim, dtype, gap);
    const bool xpos = way++ % 2 == 1;
    check.compare(
        [&](Place p) {
          return RotateTask{.x = x.matrix(p),
                            .positions = positions,
                            .head_dim = head_dim,
                            .xpos_scale = xpos ? 65536.0 : 0.0,
                            .xpos_centre = xpos ? 1 << 20 : 0.0,
                            .negative_power = xpos,
                            .inverse_angle = xpos};
        },
        {{"x", &x}});
  }
}

void check_loss(Outcome& out, const Shape& s) {
  ModelCheck check(out, concat("cross_entropy of ", s.text()));
  std::vector<int32_t> targets = tokens_of(s.rows, s.cols);
  targets[size_t(s.rows / 2)] = -1;
  Numbers logits = check.normal(s.rows, s.cols, kWide, s.gap), at = check.list(targets);
  for (int64_t j = 0; j < 16; ++j)  // all that a thread has seen of the first row
    if (j != targets[0]) logits.at<float>(Place::kHost)[j] = -INFINITY;
  logits.upload();
  Numbers loss = check.list(std::vector<double>{2.5});
  check.compare(
      [&](Place p) {
        return CrossEntropyTask{logits.matrix(p), at.at<int32_t>(p), 0.125f, loss.at<double>(p)};
      },
      {{"gradients", &logits}, {"loss", &loss}});
}

// `largest`: of the gradients. The square of 2e19 has no float, that of what is left of it has.
void check_update(Outcome& out, int64_t count, float largest = 1) {
  ModelCheck check(out, concat("update of ", count, " weights, gradients to ", largest));
  Numbers w = check.vector(count), m = check.vector(count), v = check.vector(count),
          g = check.vector(count);
  for (int64_t i = 0; i < count; ++i) v.at<float>(Place::kHost)[i] = 1.0f / float(1 + i % 99);
  v.upload();
  g.at<float>(Place::kHost)[0] *= largest;
  g.upload();
  Numbers schedule = check.list(std::vector<float>{37, 0.01f}),
          squares = check.list(std::vector<double>{3, -1, 1, -1, 5, -1});
  check.compare(
      [&](Place p) {
        return UpdateTask{.weights = w.at<float>(p),
                          .first_moment = m.at<float>(p),
                          .second_moment = v.at<float>(p),
                          .gradient = g.at<float>(p),
                          .count = count,
                          .schedule = schedule.at<float>(p),
                          .squares = squares.at<double>(p),
                          .pieces = 3,
                          .clip_norm = 0.5,
                          .decay = 0.1};
      },
      {{"weights", &w}, {"first moment", &m}, {"second moment", &v}});
  Numbers sum = check.list(std::vector<double>{1.5});
  check.compare(
      [&](Place p) {
        return SumOfSquaresTask{g.at<float>(p), count, sum.at<double>(p)};
      },
      {{"sum of squares", &sum}}, 1e-12);
}

// A kernel is prepared for long rows, and for shorter ones before it is launched for the long.
void check_prepared_before(Outcome& out) {
  std::string why;
  try {
    MemoryLedger ledger;
    std::vector<Numbers> all;
    std::vector<Prepared> works;
    for (const int64_t cols : {16384, 8192}) {
      const auto next = [&](int64_t rows, DType dtype) {
        all.push_back(Numbers::normal(rows, cols, uint32_t(all.size()), dtype, ledger));
        return all.back().matrix(Place::kDevice);
      };
      const auto floats = [&] { return static_cast<float*>(next(1, kWide).data); };
      const Matrix x = next(2, kWide), grad = next(2, kNarrow);
      works.push_back(prepare_model_task(LayerNormBackwardTask{.x = x,
                                                               .grad_y = grad,
                                                               .grad_x = grad,
                                                               .gain = floats(),
                                                               .grad_gain = floats(),
                                                               .grad_bias = floats()},
                                         ledger));
    }
    const Stream stream;
    for (const Prepared& work : works) work.launch(stream);
    stream.synchronize();
  } catch (const Error& e) {
    why = e.what();
  }
  out.expect(why.empty(), concat("layer_norm_backward, prepared twice, then launched: ", why));
}

}  // namespace

void check_model(Outcome& out, bool small) {
  if (left_out(why_device_model_absent())) return;
  // Rows that a warp has, a block, a large block; of groups of eight, or at odd addresses.
  std::vector<Shape> shapes{{70, 64}, {37, 1544}, {5, 4104}, {67, 37, 3}, {3, 1100, 5}};
  if (!small)
    shapes.insert(shapes.end(), {{20000, 64, 0}, {2048, 768, 0}, {1024, 3072, 0}, {300, 8192, 0}});
  for (const Shape& s : shapes)
    for (const DType dtype : {kNarrow, kWide}) {
      check_single_numbers(out, s, dtype);
      check_norm(out, s, dtype, kNarrow, s.rows % 2 == 0);
      // Number by number up to 3072 columns: bf16 to fp32, or at odd addresses.
      check_norm(out, s, dtype, dtype, s.rows % 2 == 1);
    }
  std::vector<std::pair<Shape, int64_t>> embeddings{
      {{300, 40}, 256}, {{1500, 24}, 700}, {{70, 37, 3}, 11}, {{50, 1032}, 30}, {{60, 16}, 66000}};
  if (!small) embeddings.insert(embeddings.end(), {{{40000, 256}, 256}, {{16384, 256}, 50000}});
  for (const auto& [shape, vocabulary] : embeddings)
    for (const DType dtype : {kNarrow, kWide}) check_embedding(out, shape, vocabulary, dtype);
  for (const DType dtype : {kNarrow, kWide}) {
    check_rotate(out, 37, 3, 24, 8, dtype);
    check_rotate(out, 20, 1, 256, 3, dtype);
    if (!small) check_rotate(out, 4096, 12, 64, 0, dtype);
  }
  check_loss(out, {37, 256});
  check_loss(out, {21, 131, 3});
  check_loss(out, {3, 2056});
  if (!small) check_loss(out, {128, 50000, 0});
  for (const int64_t count : {int64_t{8}, int64_t{1037}, int64_t{small ? 2048 : 1 << 20}})
    check_update(out, count);
  check_update(out, 24, 4e19f);
  check_prepared_before(out);
}

}  // namespace longnet::gpu
