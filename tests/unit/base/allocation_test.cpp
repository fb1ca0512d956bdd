#include "trireme/base/allocation.hpp"

#include <gtest/gtest.h>

#include <new>

#include "trireme/base/error.hpp"

namespace trireme::base {
namespace {

std::optional<FailedAllocation> of_text(const char* text) {
  return failed_allocation(std::runtime_error(text));
}

TEST(Allocation, texts_of_libtorch_are_known) {
  const auto host = of_text(
      "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: "
      "you tried to allocate 4096000 bytes. Error code 12");
  ASSERT_TRUE(host);
  EXPECT_FALSE(host->device);
  EXPECT_EQ(host->bytes, 4096000);
  const auto device = of_text(
      "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB of "
      "which 1.00 GiB is free.");
  ASSERT_TRUE(device);
  EXPECT_TRUE(device->device);
  EXPECT_EQ(device->bytes, int64_t{5} << 29);
  EXPECT_EQ(of_text("CUDA out of memory. Tried to allocate more than 1EB memory.")->bytes, 0);
  EXPECT_TRUE(of_text("CUDA error: out of memory")->device);
  EXPECT_FALSE(of_text("index 3 is out of bounds"));
  EXPECT_FALSE(failed_allocation(UserError(ExitCode::bad_data, "can't allocate memory")))
      << "our own errors have their codes";
}

TEST(Allocation, the_message_has_amount_place_and_advice) {
  note_failed_new(size_t{3} << 30);
  const auto failure = failed_allocation(std::bad_alloc());
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->bytes, int64_t{3} << 30);
  EXPECT_EQ(describe(*failure, ""),
            "out of memory: 3.0 GiB of host memory could not be had: use smaller batches, a "
            "smaller model or more nodes");
  advise_on_allocations([](const FailedAllocation& failed, const std::string& where) {
    return text("\nadvice for ", failed.bytes >> 30, " at ", where);
  });
  EXPECT_EQ(describe(*failure, "train > forward"),
            "out of memory: 3.0 GiB of host memory could not be had (train > forward)\nadvice for "
            "3 at train > forward");
  advise_on_allocations(
      [](const FailedAllocation&, const std::string&) -> std::string { throw std::bad_alloc(); });
  EXPECT_EQ(describe({true, 0}, "sync"), "out of memory: GPU memory could not be had (sync)");
  advise_on_allocations({});
}

}  // namespace
}  // namespace trireme::base
