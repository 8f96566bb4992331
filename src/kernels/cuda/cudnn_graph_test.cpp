// Does cuDNN offer engines for every dilated view on H200 and A100? Device descriptions stand in
// for the devices; nothing is run. Needs libcudnn.so.9 and a libcuda.so.1, if only the toolkit's
// stub: ctest puts that on the library path (see kernels/CMakeLists.txt).
#include "kernels/cuda/cudnn_graph.h"

#include <gtest/gtest.h>

#include <fstream>
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

TEST_F(CudnnSupportTest, QueriesAndKeysMayDifferInNumber) {
  SdpaShape shape = dilated(8192, 4, 12, 64, ViewMask::kNone);
  shape.keys = 300;
  EXPECT_GT(cudnn_configurations(shape, description("h200")), 0);
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
