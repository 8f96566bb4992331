#include "emulation/ptx_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/check.h"

namespace longnet {
namespace {

// A kernel k(out, in): %rd1 and %rd2 hold the addresses, %r1 the thread's number.
std::string kernel(const std::string& body, const std::string& shared = "") {
  return R"(.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(
	.param .u64 k_param_0,
	.param .u64 k_param_1
)
.maxntid 256, 1, 1
{
	.reg .pred 	%p<10>;
	.reg .b16 	%rs<10>;
	.reg .f32 	%f<40>;
	.reg .b32 	%r<40>;
	.reg .f64 	%fd<4>;
	.reg .b64 	%rd<20>;
	)" +
         shared + R"(
	ld.param.u64 	%rd1, [k_param_0];
	ld.param.u64 	%rd2, [k_param_1];
	mov.u32 	%r1, %tid.x;
)" + body +
         R"(
	ret;
}
)";
}

template <class T>
std::vector<T> run(const std::string& text, const void* in, size_t results,
                   const PtxLaunch& launch = {}) {
  const PtxKernel k = load_ptx(text).at("k");
  std::vector<T> out(results);
  T* to = out.data();
  void* arguments[] = {&to, &in};
  launch_ptx(k, launch, gather_parameters(k, arguments));
  return out;
}

// Puts the 32-bit register or immediate `value` to the thread's place of the output.
std::string store(const std::string& value) {
  return "\tmul.wide.u32 %rd19, %r1, 4;\n\tadd.s64 %rd18, %rd1, %rd19;\n\tst.global.u32 [%rd18], " +
         value + ";\n";
}
// Brings the thread's word of the input.
std::string load(const std::string& into) {
  return "\tmul.wide.u32 %rd17, %r1, 4;\n\tadd.s64 %rd16, %rd2, %rd17;\n\tld.global.u32 " + into +
         ", [%rd16];\n";
}

std::string failure(const std::string& text, const PtxLaunch& launch = {},
                    const void* in = std::vector<uint32_t>(64).data()) {
  try {
    run<uint32_t>(text, in, 256, launch);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(PtxMachineTest, Arithmetic) {
  const auto one = [](const std::string& body, uint32_t in) {
    return run<uint32_t>(kernel(load("%r2") + body + store("%r3")),
                         std::vector<uint32_t>(32, in).data(), 32)[0];
  };
  EXPECT_EQ(one("\tadd.s32 %r3, %r2, -5;", 3), uint32_t(-2));
  EXPECT_EQ(one("\tmul.lo.s32 %r3, %r2, %r2;", 70000), 70000u * 70000u);
  EXPECT_EQ(one("\tdp4a.u32.u32 %r3, %r2, 33620225, 5;", 0xFF040310u), 0x1FEu + 4 + 3 + 0x10 + 5);
  EXPECT_EQ(one("\tshr.s32 %r3, %r2, 4;", uint32_t(-32)), uint32_t(-2));
  EXPECT_EQ(one("\tshr.u32 %r3, %r2, 32;", 7), 0u);
  EXPECT_EQ(one("\tshl.b32 %r3, %r2, 33;", 7), 0u);
  EXPECT_EQ(one("\tdiv.s32 %r3, %r2, -3;", 10), uint32_t(-3));
  EXPECT_EQ(one("\tbfi.b32 %r3, %r2, -1, 8, 4;", 0x5), 0xFFFFF5FFu);
  EXPECT_EQ(
      one("\tmul.wide.s32 %rd3, %r2, %r2;\n\tshr.u64 %rd3, %rd3, 32;\n\tcvt.u32.u64 %r3, %rd3;",
          uint32_t(-65536)),
      1u);
  EXPECT_EQ(one("\tmov.b64 %rd3, {%r2, 9};\n\tmov.b64 {_, %r3}, %rd3;", 1), 9u);
  EXPECT_EQ(one("\tcvt.s64.s32 %rd3, %r2;\n\tsetp.lt.s64 %p1, %rd3, 0;\n\tselp.b32 %r3, 1, 2, %p1;",
                uint32_t(-1)),
            1u);
}

TEST(PtxMachineTest, Numbers) {
  const auto one = [](const std::string& body, float in) {
    return std::bit_cast<float>(
        run<uint32_t>(kernel(load("%r2") + "\tmov.b32 %f2, %r2;\n" + body +
                             "\tmov.b32 %r3, %f3;\n" + store("%r3")),
                      std::vector<uint32_t>(32, std::bit_cast<uint32_t>(in)).data(), 32)[0]);
  };
  EXPECT_EQ(one("\tfma.rn.f32 %f3, %f2, 0f40000000, 0f3F800000;", 3.0f), 7.0f);
  EXPECT_EQ(one("\tadd.f32 %f3, %f2, 0f33000000;", 1.0f), 1.0f);  // half a unit, to even
  EXPECT_EQ(one("\tfma.rm.f32 %f3, %f2, 0f3F800000, 0fB2000000;", 1.0f),
            std::nextafter(1.0f, 0.0f));  // down
  EXPECT_EQ(one("\tmax.f32 %f3, %f2, 0fFF800000;", NAN), -INFINITY);
  EXPECT_EQ(one("\tex2.approx.ftz.f32 %f3, %f2;", -130.0f), 0.0f);
  EXPECT_EQ(one("\tex2.approx.ftz.f32 %f3, %f2;", 3.0f), 8.0f);
  EXPECT_EQ(one("\tcvt.sat.f32.f32 %f3, %f2;", 7.0f), 1.0f);
  EXPECT_EQ(
      one("\tsetp.gtu.f32 %p1, %f2, 0f7F800000;\n\tselp.f32 %f3, 0f3F800000, 0f00000000, %p1;",
          NAN),
      1.0f);
  // The second operand is the low half; to nearest, ties to even.
  const auto pair = [](const std::string& type, float low, float high) {
    const std::vector<uint32_t> in{std::bit_cast<uint32_t>(low), std::bit_cast<uint32_t>(high)};
    return run<uint32_t>(kernel("\tld.global.v2.f32 {%f2, %f3}, [%rd2];\n\tcvt.rn." + type +
                                ".f32 %r3, %f3, %f2;\n" + store("%r3")),
                         in.data(), 32)[0];
  };
  EXPECT_EQ(pair("bf16x2", 1.0f, -2.0f), 0xC0003F80u);
  EXPECT_EQ(pair("bf16x2", 1.00390625f, 1.01171875f), 0x3F823F80u);
}

TEST(PtxMachineTest, LanesThatBranchApartMeetAgain) {
  // Lane l counts to l, then all add up their counts.
  const auto out = run<uint32_t>(kernel(R"(
	mov.u32 %r3, 0;
$L__loop:
	setp.ge.u32 %p1, %r3, %r1;
	@%p1 bra $L__done;
	add.s32 %r3, %r3, 1;
	bra.uni $L__loop;
$L__done:
	shfl.sync.bfly.b32 %r4|%p2, %r3, 1, 31, -1;
	add.s32 %r3, %r3, %r4;
)" + store("%r3")),
                                 nullptr, 32);
  for (uint32_t l = 0; l < 32; ++l) EXPECT_EQ(out[l], l + (l ^ 1));
}

TEST(PtxMachineTest, Shuffles) {
  const auto shuffle = [](const std::string& how) {
    return run<uint32_t>(
        kernel("\tshfl.sync." + how +
               ", -1;\n\tselp.b32 %r4, 100, 0, %p1;\n\tadd.s32 %r3, %r3, %r4;\n" + store("%r3")),
        nullptr, 32);
  };
  const auto across = shuffle("bfly.b32 %r3|%p1, %r1, 16, 15");
  const auto index = shuffle("idx.b32 %r3|%p1, %r1, 5, 31");
  for (uint32_t l = 0; l < 32; ++l) {
    EXPECT_EQ(across[l], l < 16 ? l : l - 16 + 100);  // beyond lane 15: the own value, and no
    EXPECT_EQ(index[l], 105u);
  }
}

TEST(PtxMachineTest, RacesAreSeenWhateverTheValuesAre) {
  // The first thread of each warp writes; both warps read what the other one wrote.
  const auto body = [](const std::string& between, const std::string& behind) {
    return kernel(R"(
	shr.u32 %r2, %r1, 5;
	shl.b32 %r3, %r2, 3;
	xor.b32 %r4, %r3, 8;
	mov.u32 %r9, dynamic;
	and.b32 %r5, %r1, 31;
	setp.ne.s32 %p1, %r5, 0;
	add.s32 %r6, %r9, %r3;
	@!%p1 st.shared.u32 [%r6], %r2;
)" + between + R"(
	add.s32 %r7, %r9, %r4;
	ld.shared.u32 %r8, [%r7];
)" + behind + "\t@!%p1 st.shared.u32 [%r6+16], %r8;\n" +
                  store("%r8"));
  };
  const PtxLaunch launch{.block = 64, .shared_bytes = 32};
  const std::string sync = "\tbar.sync 0;\n";
  EXPECT_EQ(failure(body(sync, ""), launch), "");
  EXPECT_THAT(
      failure(body("", ""), launch),
      testing::HasSubstr("a race at byte 8 of shared memory: warp 1 overwrites what warp 0 reads"));
  // A write behind a read of another warp needs a barrier as well.
  const std::string late = "\t@!%p1 st.shared.u32 [%r6], %r8;\n";
  EXPECT_THAT(
      failure(body(sync, late), launch),
      testing::HasSubstr("a race at byte 8 of shared memory: warp 0 reads what warp 1 writes"));
  EXPECT_EQ(failure(body(sync, sync + late), launch), "");
  // Half a barrier orders nothing the other way round.
  EXPECT_THAT(failure(body("\tbar.warp.sync -1;\n", ""), launch), testing::HasSubstr("a race"));
}

TEST(PtxMachineTest, CopiesThatNobodyWaitsForHaveNotArrived) {
  const auto body = [](bool waits) {
    return std::string(R"(
	mov.u32 %r2, dynamic;
	mov.u32 %r3, 8;
	cp.async.cg.shared.global [%r2], [%rd2], 16, %r3;
	cp.async.commit_group;
)") + (waits ? "\tcp.async.wait_group 0;\n" : "") +
           "\tld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r2];\n\tadd.s32 %r8, %r4, %r7;\n" +
           (waits ? "" : "\tcp.async.wait_group 0;\n") + store("%r8");
  };
  alignas(16) const std::vector<uint32_t> in{7, 8, 9, 10};
  const PtxLaunch late{.shared_bytes = 16, .order = {.copies_land_late = true}};
  const PtxLaunch early{.shared_bytes = 16};
  EXPECT_EQ(run<uint32_t>(kernel(body(true)), in.data(), 32, late)[0],
            7u);  // behind 8 bytes: zeros
  EXPECT_EQ(run<uint32_t>(kernel(body(false)), in.data(), 32, early)[0], 7u);
  EXPECT_NE(run<uint32_t>(kernel(body(false)), in.data(), 32, late)[0], 7u);
}

TEST(PtxMachineTest, BarriersCountArrivalsAndPhases) {
  // Warp 1 waits for two arrivals of warp 0.
  const auto text = [](const std::string& arrivals, const std::string& parity) {
    return kernel(R"(
	mov.u32 %r2, dynamic;
	setp.ne.s32 %p1, %r1, 0;
	@%p1 bra $L__made;
	mbarrier.init.shared::cta.b64 [%r2], )" +
                  arrivals + R"(;
$L__made:
	bar.sync 0;
	setp.gt.u32 %p2, %r1, 31;
	@%p2 bra $L__waits;
	@%p1 bra $L__end;
	mov.u32 %r3, 11;
	st.shared.u32 [%r2+8], %r3;
	mbarrier.arrive.shared::cta.b64 _, [%r2];
	mov.u32 %r3, 22;
	st.shared.u32 [%r2+12], %r3;
	mbarrier.arrive.shared::cta.b64 _, [%r2];
	bra.uni $L__end;
$L__waits:
	{
	.reg .pred p;
	mbarrier.try_wait.parity.shared::cta.b64 p, [%r2], )" +
                  parity + R"(;
	selp.u32 %r7, 1, 0, p;
	}
	setp.eq.s32 %p3, %r7, 0;
	@%p3 bra $L__waits;
	ld.shared.u32 %r4, [%r2+8];
	ld.shared.u32 %r5, [%r2+12];
	add.s32 %r6, %r4, %r5;
)" + store("%r6") +
                  "\n$L__end:\n");
  };
  const PtxLaunch launch{.block = 64, .shared_bytes = 16, .order = {.warps_backwards = true}};
  EXPECT_EQ(run<uint32_t>(text("2", "0"), nullptr, 64, launch)[40], 33u);
  // The wrong parity, or one arrival too few: the next phase never ends.
  for (const auto& wrong : {text("2", "1"), text("3", "0")})
    EXPECT_THAT(failure(wrong, launch),
                testing::HasSubstr("makes no progress: warp 1 at line 41 (mbarrier.try"));
}

// A tile of 64 x 64 arrives by a bulk copy, and one warpgroup multiplies it by itself. Its result
// is not compared here: gpu_check does that, on whole kernels.
TEST(PtxMachineTest, ProductsWithoutFencesWaitsOrBf16AreRefused) {
  std::string accumulators = "%f1";
  for (int i = 2; i <= 32; ++i) accumulators += concat(",%f", i);
  const std::string wait =
      "\tmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2+8192], 0;\n\t@!%p2 bra $L__wait;\n";
  const std::string body = R"(
	mov.u32 %r2, dynamic;
	add.s32 %r2, %r2, 1023;
	and.b32 %r2, %r2, -1024;
	setp.ne.s32 %p1, %r1, 0;
	@%p1 bra $L__ready;
	mbarrier.init.shared::cta.b64 [%r2+8192], 1;
	fence.mbarrier_init.release.cluster;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2+8192], 8192;
	fence.proxy.tensormap::generic.acquire.sys [%rd2], 128;
	mov.u32 %r4, 0;
	cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd2, {%r4, %r4, %r4, %r4, %r4}], [%r2+8192];
$L__ready:
	bar.sync 0;
$L__wait:
)" + wait + R"(
	shr.u32 %r6, %r2, 4;
	cvt.u64.u32 %rd4, %r6;
	or.b64 %rd4, %rd4, 0x4000004000000000;
	mov.f32 %f1, 0f00000000;
	wgmma.fence.sync.aligned;
	wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {)" +
                           accumulators +
                           R"(}, %rd4, %rd4, 0, 1, 1, 0, 0;
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;
)";
  const std::vector<uint16_t> tile(64 * 64);
  alignas(128) const PtxTensorMap map{.address = std::bit_cast<uint64_t>(tile.data()),
                                      .size = {64, 64, 1, 1, 1},
                                      .stride = {128, 256, 256, 256},
                                      .box = {64, 64, 1, 1, 1},
                                      .valid = PtxTensorMap::kValid};
  const auto error = [&](const std::string& left_out, PtxOrder order, const char* instead = "") {
    std::string text = body;
    if (!left_out.empty()) text.replace(text.find(left_out), left_out.size(), instead);
    return failure(kernel(text), {.block = 128, .shared_bytes = 8192 + 1024 + 16, .order = order},
                   &map);
  };
  for (int order = 0; order < 8; ++order)
    EXPECT_EQ(error("", {order % 2 == 1, order / 2 % 2 == 1, order / 4 == 1}), "");
  for (const auto& [left_out, reason] :
       {std::pair{"fence.mbarrier_init.release.cluster;", "no fence has shown to it"},
        {"fence.proxy.tensormap::generic.acquire.sys [%rd2], 128;", "without a fence"},
        {"wgmma.fence.sync.aligned;", "wgmma without wgmma.fence"},
        {"wgmma.wait_group.sync.aligned 0;", "ends with products under way"},
        {wait.c_str(), "reads what a bulk copy on barrier 0 writes"}})
    EXPECT_THAT(error(left_out, {}), testing::HasSubstr(reason)) << left_out;
  EXPECT_THAT(error("bf16.bf16", {}, "f16.f16"),
              testing::HasSubstr("a product of other types than bf16"));
}

TEST(PtxMachineTest, WhatIsWrongIsSaidWithItsLine) {
  for (const auto& [body, reason] :
       {std::pair{"\tprmt.b32 %r2, %r1, %r1, 0;", "PTX line 21: no instruction prmt.b32"},
        {"\tmma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, "
         "{%r2,%r3,%r4,%r5}, {%r6,%r7}, {%f1,%f2,%f3,%f4};",
         "no instruction mma.sync"},
        {"\tadd.cc.s32 %r2, %r1, 1;", "'cc' of add.cc.s32"},
        {"\tmov.u32 %r2, nothing;", "unknown operand 'nothing'"},
        {"\tmov.u32 %r2, dynamic;\n\tld.shared.u32 %r3, [%r2+8];",
         "line 22 (ld.shared.u32): byte 8 of 8 of shared memory"},
        {"\tmov.u32 %r2, 0;\n\tld.shared.u32 %r3, [%r2+-4];", "byte -4 of 8 of shared memory"},
        {"\tadd.rm.f32 %f2, %f2, %f2;", "'rm' of add.rm"},
        {"\tadd.sat.f32 %f2, %f2, %f2;", "'sat' of add"},
        {"\tsetp.eq.s32 %p1|%p2, %r1, 0;", "a second result"},
        {"\tsetp.eq.s32 %p1, %r1, 0;\n\t@%p1 bar.sync 0;", "do not agree whether to execute it"},
        {"$L__a:\n$L__a:\n", "a second label '$L__a'"},
        {"\tld.global.v4.u32 {%r2,%r3,%r4,%r5}, [%rd2+4];", "is not aligned to 16 bytes"},
        {"\ttrap;", "a trap"},
        {"\tsetp.lt.u32 %p1, %r1, 32;\n\t@%p1 bra $L__end;\n\tbar.sync 0;\n$L__end:",
         "makes no progress: warp 1 at line 23 (bar.sync)"},
        {"\tsetp.eq.u32 %p1, %r1, 0;\n\t@%p1 bra $L__end;\n\tbar.warp.sync -1;\n\tret;\n"
         "$L__end:\n\tbar.warp.sync -1;",
         "wait for each other at different instructions"}})
    EXPECT_THAT(failure(kernel(body), {.block = 64, .shared_bytes = 8}),
                testing::HasSubstr(reason));
}

}  // namespace
}  // namespace longnet
