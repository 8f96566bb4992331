// The help of gpu_kernels_benchmark.
#pragma once

namespace longnet::gpu {

inline constexpr const char* kUsage =
    R"(gpu_kernels_benchmark: attention kernels on one GPU, beside a ceiling model and cuDNN.

  gpu_kernels_benchmark [OPTIONS]

  rows      Inputs with digest, digests, NaN, inputs and NaN, summaries: a walk's own work. GB/s.
  sweep     head_dim x rows per segment x mask x kernel and tile shape, dense
            segments of one packed [tokens][heads][head_dim] tensor. TFLOP/s count 4 d per visible
            pair. cuDNN is timed as the library runs, 16-bit results included, without our widening.
  dilation  The same rows per segment at r = 1, 4, 16: what a strided view costs (share of the dense
            rate of the same kernel), and what gather + dense + scatter costs instead.
  backward  The backward pass at r = 1 and 4, TFLOP/s of 10 d per visible pair. cuDNN as the library
            runs, its sums of dQ in one order ("cudnn") and in any ("cudnn any order").
  gemm      Products of a layer and of its gradients by cuBLASLt, for a quarter of the tokens.
  model     Functions of a model's layers, loss and update, for a quarter of the tokens: GB/s of what
            they read and write once; TFLOP/s of products whose weights are rounded in each launch.
  merge     A dilated branch folded into the output by the kernel, or by a launch of its own.

  --section  Only this section.
  --seconds  What the program may take (120); what it leaves out is counted.
  --quick    The main points of each section.
  --sm90a    cuda_sm90a in every tile shape, beside cuda and cuDNN; no gemm, no model.
  --tokens   Tokens of the tensors at r = 1 (131072); longer segments are left out.
  --rows     Only points of so many rows per segment.
  --shape    Only this tile shape of the own kernels; cuDNN stays, to compare with.
  --json     Every point, renewed after each; lnbench calibrate --gpu-kernels reads it.

Inputs are several times the L2 cache. The goals that were reached end the output. Exit codes: 0 all
ran, 1 a point failed, 2 usage, 3 no GPU.
)";

}  // namespace longnet::gpu
