#include "gpu/support.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string_view>

#include "core/check.h"
#include "kernels/cuda/rows.h"

namespace longnet::gpu {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    char escaped[8];
    if (c == '"' || c == '\\')
      out += std::string("\\") + c;
    else if (static_cast<unsigned char>(c) < 0x20)
      std::snprintf(escaped, sizeof escaped, "\\u%04x", unsigned(c)), out += escaped;
    else
      out += c;
  }
  return out + "\"";
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

Json& Json::raw(std::string_view key, const std::string& value) {
  body_ += (body_.empty() ? "" : ", ") + quoted(key) + ": " + value;
  return *this;
}
Json& Json::set(std::string_view key, double value) { return raw(key, number_text(value)); }
Json& Json::set(std::string_view key, int64_t value) { return raw(key, std::to_string(value)); }
Json& Json::set(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
Json& Json::set(std::string_view key, std::string_view value) { return raw(key, quoted(value)); }
Json& Json::set(std::string_view key, const Json& value) { return raw(key, value.text()); }
Json& Json::set(std::string_view key, const std::vector<Json>& values) {
  std::string text = "[";
  for (const Json& v : values) text += (text.size() > 1 ? ",\n  " : "\n  ") + v.text();
  return raw(key, text + "]");
}
Json& Json::set(std::string_view key, const std::vector<double>& values) {
  std::string text = "[";
  for (const double v : values) text += (text.size() > 1 ? ", " : "") + number_text(v);
  return raw(key, text + "]");
}

Arguments::Arguments(int argc, char** argv, const std::vector<std::string>& known) {
  for (int i = 1; i < argc; ++i) {
    const std::string key = argv[i];
    bool found = false;
    std::string list;
    for (const std::string& k : known) {
      found = found || k == key;
      list += " " + k;
    }
    if (!found)
      throw UsageError(
          concat("unknown argument '", key, "': there are", list, "; --help says more"));
    const bool has_value = i + 1 < argc && std::string_view(argv[i + 1]).substr(0, 2) != "--";
    values_[key] = has_value ? argv[++i] : "";
  }
}

std::string Arguments::text(const std::string& key, const std::string& fallback) const {
  const auto it = values_.find(key);
  return it == values_.end() ? fallback : it->second;
}

double Arguments::number(const std::string& key, double fallback) const {
  const auto it = values_.find(key);
  if (it == values_.end()) return fallback;
  char* end = nullptr;
  const double value = std::strtod(it->second.c_str(), &end);
  if (it->second.empty() || *end != 0)
    throw UsageError(concat(key, " needs a number, not '", it->second, "'"));
  return value;
}

const DeviceReport& devices() {
  static const DeviceReport report = describe_devices();
  return report;
}

namespace {
char work_text[256] = "ended before any work\n";
// Only what a signal handler may do.
extern "C" void end_with_word(int) {
  constexpr std::string_view kEnded = "ended from outside, at: ";
  [[maybe_unused]] auto written = write(STDOUT_FILENO, kEnded.data(), kEnded.size());
  written = write(STDOUT_FILENO, work_text, std::char_traits<char>::length(work_text));
  _exit(124);
}
}  // namespace

void note_work(const std::string& what) {
  std::snprintf(work_text, sizeof work_text, "%.*s\n", int(sizeof work_text) - 2, what.c_str());
}

Json device_json() {
  const DeviceReport& report = devices();
  const DeviceInfo& d = report.devices.at(0);
  return Json()
      .set("name", d.name)
      .set("compute_capability", concat(d.major, ".", d.minor))
      .set("multiprocessors", d.multiprocessors)
      .set("memory_bytes", d.memory_bytes)
      .set("l2_bytes", d.l2_bytes)
      .set("clock_khz", d.clock_khz)
      .set("driver_cuda", cuda_version_text(report.driver))
      .set("toolkit_cuda", cuda_version_text(report.toolkit));
}

Json timing_json(const DeviceTiming& t) {
  return Json()
      .set("median_s", t.median_s)
      .set("min_s", t.min_s)
      .set("samples_s", t.samples_s)
      .set("launches_per_sample", t.launches_per_sample)
      .set("graph", t.graph)
      .set("sm_mhz", t.during.sm_mhz)
      .set("power_w", t.during.power_w)
      .set("throttle", t.during.known ? t.during.limits_text() : "unknown");
}

void write_file(const std::string& path, const std::string& text) {
  const std::string half = path + ".part";
  std::ofstream file(half);
  file << text << "\n";
  file.close();
  if (!file) throw UsageError(concat("cannot write ", half));
  std::filesystem::rename(half, path);
}

double attention_ceiling_flops(const DeviceInfo& device, double flops, double sm_hz) {
  const double per_clock = device.major >= 9 ? 4096 : 2048;
  return flops / (flops / per_clock + 1.0 / 16) * device.multiprocessors * sm_hz;
}

double pairs_of(const std::vector<AttendGrid>& grids, bool causal) {
  double pairs = 0;
  for (const AttendGrid& grid : grids) {
    const double n = double(grid.task.q.rows);
    pairs += double(grid.size()) * (causal ? n * (n + 1) / 2 : n * n);
  }
  return pairs;
}

std::vector<float> dense_rows(const float* from, int64_t stride, int64_t rows, int64_t dims) {
  MemoryLedger ledger;
  const DeviceBuffer dense(ledger, "check", rows * dims * int64_t{sizeof(float)});
  const PackTask task{from, dense.data(), stride, dims, rows};
  const Prepared pack = prepare_pack({&task, 1}, Conversion::kNone, dims, sizeof(float), ledger);
  const Stream stream;
  pack.launch(stream);
  stream.synchronize();
  return download<float>(dense.data(), rows * dims);
}

double distance(std::span<const float> got, std::span<const float> expected) {
  double off = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(got[i]) != std::isnan(expected[i])) return INFINITY;
    if (std::isnan(expected[i])) continue;
    off += std::pow(double(got[i]) - expected[i], 2);
    norm += std::pow(double(expected[i]), 2);
  }
  return std::sqrt(off / std::max(norm, 1e-30));
}

PackedTensors::PackedTensors(int64_t tokens, int64_t heads, int64_t head_dim, MemoryLedger& ledger)
    : tokens_(tokens), heads_(heads), head_dim_(head_dim), ledger_(ledger) {
  q_ = DeviceBuffer(ledger, "query", 2 * elements());
  kv_ = DeviceBuffer(ledger, "kv", 4 * elements());
  o_ = DeviceBuffer(ledger, "output", 4 * elements());
  lse_ = DeviceBuffer(ledger, "output", 4 * tokens * heads);
  fill(Tensor::kQuery, q_.data());
  fill(Tensor::kKey, kv_.data());
  fill(Tensor::kValue, kv_.data() + 2 * elements());
  const Stream stream;
  stream.fill(o_.data(), 0xFF, o_.size());
  stream.fill(lse_.data(), 0xFF, lse_.size());
  stream.synchronize();
}

void PackedTensors::fill(Tensor tensor, std::byte* into) {
  std::vector<FillRows> rows;
  for (int64_t head = 0; head < heads_; ++head)
    rows.push_back({.tensor = tensor,
                    .head = head,
                    .rows = tokens_,
                    .out = into + 2 * head * head_dim_,
                    .row_stride = heads_ * head_dim_});
  const Stream stream;
  const Prepared generator = prepare_fill(rows, 1, head_dim_, DType::kBFloat16, ledger_);
  generator.launch(stream);
  stream.synchronize();
}

PackedAttention PackedTensors::packed() const {
  return {.q = q_.data(),
          .k = kv_.data(),
          .v = kv_.data() + 2 * elements(),
          .o = o(),
          .lse = lse(),
          .tokens = tokens_,
          .heads = heads_,
          .kv_heads = heads_,
          .head_dim = head_dim_};
}

std::vector<BackwardGrid> PackedTensors::backward(int64_t w, int64_t r, bool causal) {
  const int64_t rows = tokens_ * heads_;
  if (grad_out_.size() == 0) {
    grad_out_ = DeviceBuffer(ledger_, "grad_out", 2 * elements());
    statistics_ = DeviceBuffer(ledger_, "statistics", 8 * rows);
    gradients_ = DeviceBuffer(ledger_, "gradients", 12 * elements());
    fill(Tensor::kGradOut, grad_out_.data());
  }
  auto* const statistics = reinterpret_cast<float*>(statistics_.data());
  auto* const gradients = reinterpret_cast<float*>(gradients_.data());
  const DeltaTask delta{.out = {o(), lse(), head_dim_, 1},
                        .grad_out = grad_out_.data(),
                        .statistics = statistics,
                        .grad_out_stride = head_dim_,
                        .rows = rows};
  const Stream stream;
  Prepared forward =
      make_cuda_kernel()->prepare(branch(w, r), {.head_dim = head_dim_, .causal = causal}, ledger_);
  forward.then(prepare_delta({&delta, 1}, head_dim_, ledger_));
  forward.launch(stream);
  stream.fill(gradients_.data(), 0, gradients_.size());
  stream.synchronize();
  PackedAttention of_gradients = packed();
  of_gradients.o = gradients;
  of_gradients.lse = statistics;
  return backward_grids(of_gradients, grad_out_.data(), gradients + elements(), w, r, lists_);
}

std::vector<AttendGrid> PackedTensors::branch(int64_t w, int64_t r) {
  return branch_grids(packed(), w, r, lists_);
}

std::vector<AttendGrid> PackedTensors::compact_branch(int64_t w, int64_t r) {
  PackedAttention compact = packed();
  compact.compact_results = true;
  int64_t rows = 0;
  for (const AttendGrid& grid : branch(w, r)) rows += grid.size() * grid.task.q.rows;
  partial_o_ = DeviceBuffer(ledger_, "partial", 4 * rows * head_dim_);
  partial_lse_ = DeviceBuffer(ledger_, "partial", 4 * rows);
  compact.o = reinterpret_cast<float*>(partial_o_.data());
  compact.lse = reinterpret_cast<float*>(partial_lse_.data());
  return branch_grids(compact, w, r, lists_);
}

int run_program(const Program& program, int argc, char** argv,
                const std::function<int(const Arguments&)>& body) {
  const char* const name = program.name;
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--help" || std::string_view(argv[i]) == "-h") {
      std::cout << program.usage;
      return 0;
    }
  try {
    const Arguments arguments(argc, argv, program.options);
    std::signal(SIGTERM, end_with_word);
    if (!devices().unusable.empty()) {
      std::cerr << name << ": no GPU to use: " << devices().unusable << ". Nothing was run.\n";
      return kNoGpu;
    }
    return body(arguments);
  } catch (const UsageError& e) {
    std::cerr << name << ": " << e.what() << "\n";
    return 2;
  } catch (const std::exception& e) {
    std::cerr << name << ": error: " << e.what() << "\n";
    return 1;
  }
}

}  // namespace longnet::gpu
