// Does cuDNN offer engines for every dilated view on H200 and A100? Device descriptions stand in
// for the devices; nothing is run. Needs libcudnn.so.9 and a libcuda.so.1, if only the toolkit's
// stub: ctest puts that on the library path (see kernels/CMakeLists.txt).
#include "kernels/cuda/cudnn_graph.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "core/check.h"
#include "core/cuda/dynamic_library.h"
#include "kernels/cuda/cudnn_kernel.h"

namespace longnet {
namespace {

std::string description(const std::string& device) {
  std::ifstream file(concat(LONGNET_DEVICE_DESCRIPTIONS, "/", device, ".json"));
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << device;
  return text.str();
}

// Branch (w, r) of packed [N][H][d] tensors, heads of one offset group folded into their stride.
SdpaShape dilated(int64_t w, int64_t r, int64_t heads, int64_t d, ViewMask mask) {
  const int64_t rows = w / r, inner = std::min(r == 1 ? heads : r, heads);
  const int64_t head = r == 1 ? d : heads * d + d;
  const std::array<int64_t, 3> in{w * heads * d, head, r * heads * d};
  return {.outer = 4,
          .inner = inner,
          .rows = rows,
          .keys = rows,
          .head_dim = d,
          .q = in,
          .k = in,
          .v = in,
          .o = {inner * rows * d, rows * d, d},
          .lse = {w * heads, r == 1 ? 1 : heads + 1, r * heads},
          .mask = mask};
}

class CudnnSupportTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_cudnn_absent(); !why.empty()) GTEST_SKIP() << why;
    if (const DynamicLibrary driver({"libcuda.so.1"}); !driver.is_open())
      GTEST_SKIP() << "no libcuda.so.1, not even the toolkit's stub: " << driver.error();
  }
};

TEST_F(CudnnSupportTest, EveryDilatedViewHasAnEngine) {
  for (const char* device : {"h200", "a100"}) {
    const std::string json = description(device);
    for (const auto& [heads, d] : {std::pair<int64_t, int64_t>{12, 64}, {16, 128}})
      for (const ViewMask mask : {ViewMask::kNone, ViewMask::kUpToOwn, ViewMask::kBeforeOwn})
        for (const auto& [w, r] :
             {std::pair<int64_t, int64_t>{2048, 1}, {8192, 4}, {int64_t{1} << 20, 512}})
          EXPECT_GT(cudnn_configurations(dilated(w, r, heads, d, mask), json), 0)
              << device << " w " << w << " r " << r << " d " << d << " mask " << int(mask);
  }
}

// Tasks of a packed [N][H][d] tensor as the kernel gets them, laid over addresses that nobody
// reads.
struct Packed {
  int64_t heads, kv_heads, d;
  bool compact_results = false;  // partials behind each other

  std::vector<ViewTask> branch(int64_t segments, int64_t w, int64_t r, ViewMask mask) const {
    auto* const q = reinterpret_cast<uint16_t*>(uintptr_t{1} << 40);
    auto* const k = q + (int64_t{1} << 36);
    auto* const o = reinterpret_cast<float*>(uintptr_t{1} << 44);
    float* const lse = o + (int64_t{1} << 36);
    std::vector<ViewTask> tasks;
    int64_t compact = 0;
    for (int64_t s = 0; s < segments; ++s)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t offset = h % r, first = s * w + offset, rows = (w - offset + r - 1) / r;
        const int64_t kv_at = (first * kv_heads + h * kv_heads / heads) * d;
        const int64_t at = compact_results ? compact : first * heads + h;
        const int64_t lse_step = compact_results ? 1 : r * heads;
        tasks.push_back(
            {.q = {q + (first * heads + h) * d, r * heads * d, rows, first, r},
             .kv = {k + kv_at, k + kv_at + (int64_t{1} << 34), r * kv_heads * d, rows, first, r},
             .out = {o + at * d, lse + at, lse_step * d, lse_step},
             .mask = mask});
        compact += rows;
      }
    return tasks;
  }
};

// Engines for every launch that the tasks become.
void expect_engines(const std::vector<ViewTask>& tasks, int64_t d, DeviceElement element,
                    const std::string& what) {
  for (const char* device : {"h200", "a100"})
    for (const StridedView& view : strided_views(tasks)) {
      const SdpaShape shape = sdpa_shape(view, d, element);
      static std::set<std::pair<std::string, SdpaShape>> asked;  // offsets share a shape
      if (!asked.insert({device, shape}).second) continue;
      int64_t engines = 0;
      try {
        engines = cudnn_configurations(shape, description(device));
      } catch (const Error& e) {
        ADD_FAILURE() << device << " " << what << ": " << e.what();
      }
      EXPECT_GT(engines, 0) << device << " " << what << ": " << shape.outer << " x " << shape.inner
                            << " x " << shape.rows << " rows, " << shape.keys << " keys";
    }
}

constexpr ViewMask kMasks[] = {ViewMask::kNone, ViewMask::kUpToOwn, ViewMask::kBeforeOwn};

TEST_F(CudnnSupportTest, WhatTheKernelMakesOfTasks) {
  const std::pair<int64_t, int64_t> branches[] = {{8192, 3}, {211, 7}, {64, 64}, {2048, 1}};
  for (const Packed& p :
       {Packed{12, 12, 64}, Packed{12, 4, 64}, Packed{8, 1, 128}, Packed{12, 12, 64, true}})
    for (const auto& [w, r] : branches)
      for (const ViewMask mask : kMasks)
        expect_engines(p.branch(4, w, r, mask), p.d, DeviceElement::kBFloat16,
                       concat("H ", p.heads, "/", p.kv_heads, " d ", p.d, " w ", w, " r ", r,
                              " mask ", int(mask), p.compact_results ? " compact" : ""));
}

TEST_F(CudnnSupportTest, EveryHeadDimAndElement) {
  for (const int64_t d : {8, 24, 48, 64, 80, 96, 128})
    for (const DeviceElement element : {DeviceElement::kBFloat16, DeviceElement::kFloat16})
      for (const ViewMask mask : kMasks)
        expect_engines(Packed{4, 4, d}.branch(2, 1024, 4, mask), d, element,
                       concat("d ", d, " element ", int(element), " mask ", int(mask)));
}

TEST_F(CudnnSupportTest, QueriesAndKeysMayDifferInNumber) {
  for (const ViewMask mask : kMasks)
    for (const auto& [rows, keys] :
         {std::pair<int64_t, int64_t>{2048, 300}, {1, 2048}, {2048, 1}, {1, 1}, {300, 2048}}) {
      auto tasks = Packed{12, 12, 64}.branch(1, 2048, 1, mask);
      for (ViewTask& task : tasks) {
        task.q.rows = rows;
        task.kv.rows = keys;
      }
      const std::string what = concat(rows, " rows, ", keys, " keys, mask ", int(mask));
      expect_engines(tasks, 64, DeviceElement::kBFloat16, what);
      expect_engines({tasks.front()}, 64, DeviceElement::kBFloat16, what + ", one task");
    }
}

TEST(CudnnShapeTest, MisalignmentIsOurOwnCheck) {
  SdpaShape shape = dilated(2048, 1, 12, 64, ViewMask::kNone);
  EXPECT_EQ(why_misaligned(shape), "");
  shape.k[2] += 4;
  EXPECT_NE(why_misaligned(shape).find("stride 2 of K"), std::string::npos);
  EXPECT_NE(why_misaligned(dilated(2048, 1, 12, 60, ViewMask::kNone)), "");
}

}  // namespace
}  // namespace longnet
