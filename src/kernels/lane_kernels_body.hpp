// All bodies as one table; included by lane_kernels_{portable,avx2,avx512}.cpp only. Nothing in the
// bodies may have external linkage, and no function of the standard library that is not the C
// library's (vector16.hpp says why).
#pragma once

#include "kernels/adamw_body.hpp"
#include "kernels/decode_rows_body.hpp"
#include "kernels/lane_kernels.hpp"
#include "kernels/log_sum_exp_body.hpp"
#include "kernels/sampling_body.hpp"

namespace {

template <class T>
constexpr trireme::kernels::LogitKernels<T> logit_kernels{
    update<T>,  update_with_entropy<T>, softmax_gradient<T>, argmax<T>, pass<T>, at_least<T>,
    add_row<T>, reduce_row<T>};

constexpr trireme::kernels::LaneKernels lane_kernels_here{
    logit_kernels<float>,
    logit_kernels<uint16_t>,
    {adamw_words, sum_of_squares, cast_range, add_range, average_range}};

}  // namespace
