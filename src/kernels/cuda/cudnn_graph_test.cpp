// Tests that cuDNN offers engines for every dilated view on H200 and A100. Device descriptions
// replace the devices; nothing is run. Needs libcudnn.so.9 and a libcuda.so.1, if only the
// toolkit's stub: ctest puts that on the library path (see kernels/CMakeLists.txt).
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "core/check.h"
#include "core/cuda/dynamic_library.h"
#include "kernels/cuda/cudnn_sdpa.h"
#include "kernels/cuda/device_kernel.h"
#include "kernels/testing/packed_branch.h"

namespace longnet {
namespace {

std::string description(const std::string& device) {
  std::ifstream file(concat(LONGNET_DEVICE_DESCRIPTIONS, "/", device, ".json"));
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << device;
  return text.str();
}

// Number of engine configurations that cuDNN offers for a shape on the device that the JSON text
// describes.
int64_t cudnn_configurations(const SdpaShape& shape, const std::string& device_json) {
  EXPECT_EQ(why_misaligned(shape), "");
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set_raw(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, device_json.size(),
                 device_json.data());
  device.finalize("device description");
  const OperationGraph graph = sdpa_graph(shape, lse_alignments(shape).front(), nullptr);
  return std::ssize(configurations(graph, std::optional(std::move(device))));
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

// The backward pass of a shape, its statistics and results dense.
SdpaShape backward_of(SdpaShape shape, bool any_order) {
  shape.backward = true;
  shape.any_order = any_order;
  shape.o = {shape.inner * shape.rows * shape.head_dim, shape.rows * shape.head_dim,
             shape.head_dim};
  shape.lse = {shape.inner * shape.rows, shape.rows, 1};
  return shape;
}

TEST_F(CudnnSupportTest, EveryDilatedViewHasAnEngineForItsBackwardPass) {
  for (const char* device : {"h200", "a100"}) {
    const std::string json = description(device);
    for (const auto& [heads, d] : {std::pair<int64_t, int64_t>{12, 64}, {16, 128}, {4, 8}, {4, 24}})
      for (const ViewMask mask : {ViewMask::kNone, ViewMask::kUpToOwn, ViewMask::kBeforeOwn})
        for (const auto& [w, r] :
             {std::pair<int64_t, int64_t>{2048, 1}, {8192, 4}, {int64_t{1} << 20, 512}, {211, 7}})
          for (const bool any_order : {false, true}) {
            const SdpaShape shape = backward_of(dilated(w, r, heads, d, mask), any_order);
            EXPECT_GT(cudnn_configurations(shape, json), 0)
                << device << " w " << w << " r " << r << " d " << d << " mask " << int(mask)
                << " any order " << any_order;
          }
  }
}

PackedAttention packed(int64_t heads, int64_t kv_heads, int64_t d, bool compact_results = false) {
  PackedAttention p = unread_packed(0, heads, kv_heads);
  p.head_dim = d;
  p.compact_results = compact_results;
  return p;
}

// The launches of a branch, and the lists that they refer to.
struct Branch {
  KvLists lists;
  std::vector<StridedView> views;
  Branch(PackedAttention p, int64_t segments, int64_t w, int64_t r, ViewMask mask) {
    p.tokens = segments * w;
    for (const AttendGrid& grid : branch_grids(p, w, r, lists)) {
      const auto some = strided_views(grid, grid.task.kv[0], mask);
      views.insert(views.end(), some.begin(), some.end());
    }
  }
};

void expect_engines(const std::vector<StridedView>& views, int64_t d, const std::string& what) {
  std::vector<SdpaShape> shapes;
  for (const StridedView& view : views) {
    shapes.push_back(sdpa_shape(view, d));
    shapes.push_back(sdpa_backward_shape(view, d));
  }
  for (const char* device : {"h200", "a100"})
    for (const SdpaShape& shape : shapes) {
      static std::set<std::pair<std::string, SdpaShape>> asked;  // offsets share a shape
      if (!asked.insert({device, shape}).second) continue;
      int64_t engines = 0;
      try {
        engines = cudnn_configurations(shape, description(device));
      } catch (const Error& e) {
        ADD_FAILURE() << device << " " << what << ": " << e.what();
      }
      EXPECT_GT(engines, 0) << device << " " << what << ": " << shape.outer << " x " << shape.inner
                            << " x " << shape.rows << " rows, " << shape.keys << " keys, backward "
                            << shape.backward;
    }
}

constexpr ViewMask kMasks[] = {ViewMask::kNone, ViewMask::kUpToOwn, ViewMask::kBeforeOwn};

TEST_F(CudnnSupportTest, WhatTheKernelMakesOfTasks) {
  const std::pair<int64_t, int64_t> branches[] = {{8192, 3}, {211, 7}, {64, 64}, {2048, 1}};
  for (const PackedAttention& p :
       {packed(12, 12, 64), packed(12, 4, 64), packed(8, 1, 128), packed(12, 12, 64, true)})
    for (const auto& [w, r] : branches)
      for (const ViewMask mask : kMasks)
        expect_engines(Branch(p, 4, w, r, mask).views, p.head_dim,
                       concat("H ", p.heads, "/", p.kv_heads, " d ", p.head_dim, " w ", w, " r ", r,
                              " mask ", int(mask), p.compact_results ? " compact" : ""));
}

TEST_F(CudnnSupportTest, EveryHeadDim) {
  for (const int64_t d : {8, 24, 48, 64, 80, 96, 128})
    for (const ViewMask mask : kMasks)
      expect_engines(Branch(packed(4, 4, d), 2, 1024, 4, mask).views, d,
                     concat("d ", d, " mask ", int(mask)));
}

TEST_F(CudnnSupportTest, QueriesAndKeysMayDifferInNumber) {
  for (const ViewMask mask : kMasks)
    for (const auto& [rows, keys] :
         {std::pair<int64_t, int64_t>{2048, 300}, {1, 2048}, {2048, 1}, {1, 1}, {300, 2048}}) {
      auto views = Branch(packed(12, 12, 64), 1, 2048, 1, mask).views;
      ASSERT_EQ(views.size(), 1u);
      views[0].grid.task.q.rows = rows;
      views[0].kv.rows = keys;
      const std::string what = concat(rows, " rows, ", keys, " keys, mask ", int(mask));
      expect_engines(views, 64, what);
      views[0].grid.count = {1, 1, 1, 1};
      expect_engines(views, 64, what + ", one task");
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
