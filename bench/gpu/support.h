// Helpers that the GPU programs share: JSON, arguments, tensors. They depend only on CUDA and this
// project's device code, and so build without a JSON, command-line or test library.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/cuda/device.h"
#include "core/random.h"
#include "gpu/device_timer.h"
#include "kernels/attention_kernel.h"
#include "kernels/testing/packed_branch.h"

namespace longnet::gpu {

inline constexpr int kNoGpu = 3;  // exit code, as lnbench's "machine not usable"

// A JSON object, written in the order of set(). Numbers that are not finite become null.
class Json {
 public:
  Json& set(std::string_view key, double value);
  Json& set(std::string_view key, int64_t value);
  Json& set(std::string_view key, int value) { return set(key, int64_t{value}); }
  Json& set(std::string_view key, bool value);
  Json& set(std::string_view key, std::string_view value);
  Json& set(std::string_view key, const char* value) { return set(key, std::string_view(value)); }
  Json& set(std::string_view key, const Json& value);
  Json& set(std::string_view key, const std::vector<Json>& values);
  Json& set(std::string_view key, const std::vector<double>& values);
  std::string text() const { return "{" + body_ + "}"; }

 private:
  Json& raw(std::string_view key, const std::string& value);
  std::string body_;
};

// --key value, --flag. Throws UsageError for what `known` does not list.
class Arguments {
 public:
  Arguments(int argc, char** argv, const std::vector<std::string>& known);
  bool has(const std::string& key) const { return values_.contains(key); }
  std::string text(const std::string& key, const std::string& fallback) const;
  double number(const std::string& key, double fallback) const;

 private:
  std::map<std::string, std::string> values_;
};

// Devices as found at program start: a device lost to an error can no longer be queried.
const DeviceReport& devices();
Json device_json();
// Sets the description of the current work, which the program prints when SIGTERM ends it.
void note_work(const std::string& what);
Json timing_json(const DeviceTiming& timing);
// Writes the file atomically: to a temporary name, then renamed.
void write_file(const std::string& path, const std::string& text);

template <class T>
std::vector<T> download(const void* from, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  const Stream stream;
  stream.copy(host.data(), from, count * int64_t(sizeof(T)));
  stream.synchronize();
  return host;
}

// Most that attention can reach when tensor cores and exponentials take turns: f FLOP per pair take
// f / F + 1 / 16 clocks of an SM, with F = 4096 (sm_90; 2048 for sm_80) 16-bit FLOP of the tensor
// cores and 16 exponentials per clock. Fits FlashAttention-3's published figures of the forward
// pass (f = 4 d) within 5 %; those of its backward pass (f = 10 d) reach 0.7 of it.
double attention_ceiling_flops(const DeviceInfo& device, double flops_per_pair, double sm_hz);
// Visible (query, key) pairs of dense segments.
double pairs_of(const std::vector<AttendGrid>& grids, bool causal);

// Rows of `dims` floats that lie `stride` apart on the device, behind each other.
std::vector<float> dense_rows(const float* from, int64_t stride, int64_t rows, int64_t dims);
// The relative L2 distance; infinite where only one of two values is NaN: rows that a branch does
// not select are NaN in both.
double distance(std::span<const float> got, std::span<const float> expected);

// Q, K, V as packed [tokens][heads][head_dim] in device memory, from the generator; O and LSE as
// [tokens][heads]...; and the tasks of a branch over it.
class PackedTensors {
 public:
  PackedTensors(int64_t tokens, int64_t heads, int64_t head_dim, MemoryLedger& ledger);
  // Branch (w, r): one task per (head, segment), in the order of a program.
  std::vector<AttendGrid> branch(int64_t segment_length, int64_t dilation_rate);
  // The tasks of branch() with compact results: [head][segment][row].
  std::vector<AttendGrid> compact_branch(int64_t segment_length, int64_t dilation_rate);
  // The branch's backward pass. Attends to it, for its O and LSE, and makes dO and the statistics.
  std::vector<BackwardGrid> backward(int64_t segment_length, int64_t dilation_rate, bool causal);
  float* o() const { return reinterpret_cast<float*>(o_.data()); }
  float* lse() const { return reinterpret_cast<float*>(lse_.data()); }
  // dQ, dK and dV of a backward pass behind each other, [tokens][heads][head_dim] each.
  const DeviceBuffer& gradients() const { return gradients_; }
  int64_t elements() const { return tokens_ * heads_ * head_dim_; }  // numbers of Q

 private:
  PackedAttention packed() const;
  void fill(Tensor tensor, std::byte* into);
  int64_t tokens_, heads_, head_dim_;
  DeviceBuffer q_, kv_, o_, lse_, partial_o_, partial_lse_;
  DeviceBuffer grad_out_, statistics_, gradients_;
  KvLists lists_;  // that the grids refer to
  MemoryLedger& ledger_;
};

// Runs `body`; prints errors; the exit code of main. --help prints `usage`, on any machine; else it
// says so and returns 3 where there is no GPU.
struct Program {
  const char* name;
  const char* usage;
  std::vector<std::string> options;
};
int run_program(const Program& program, int argc, char** argv,
                const std::function<int(const Arguments&)>& body);

}  // namespace longnet::gpu
