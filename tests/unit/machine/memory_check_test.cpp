// What a run says of its plan and of what it measured.
#include <gtest/gtest.h>

#include "trireme/machine/memory_check.hpp"

namespace trireme::machine {
namespace {

TEST(MemoryCheck, SaysPlanAndMeasureByPlaceAndKind) {
  EXPECT_EQ(MemoryCheck::compare({}), "");
  EXPECT_EQ(MemoryCheck::compare({{"host_peak", 5}}), "") << "nothing was planned";
  std::map<std::string, int64_t> figures{{"planned_host_peak", 1'200'000'000},
                                         {"host_peak", 1'100'000'000}};
  EXPECT_EQ(MemoryCheck::compare(figures),
            "memory: host peak 1.200 GB planned, 1.100 GB measured (of the rank that has most)");
  figures.merge(std::map<std::string, int64_t>{{"planned_device_peak", 70'000'000'000},
                                               {"device_peak", 68'500'000'000},
                                               {"planned_device_tensors", 60'000'000'000},
                                               {"device_tensors", 59'000'000'000},
                                               {"planned_device_exchanges", 8'000'000'000},
                                               {"device_exchanges", 8'000'000'000},
                                               {"planned_device_libraries", 2'000'000'000},
                                               {"device_libraries", 1'500'000'000}});
  EXPECT_EQ(MemoryCheck::compare(figures),
            "memory: host peak 1.200 GB planned, 1.100 GB measured (of the rank that has most); "
            "device peak 70.000 GB planned, 68.500 GB measured (of the rank"
            " that has most); on the GPU tensors 60.000 GB planned, 59.000 GB measured, exchanges "
            "8.000 GB planned, 8.000 GB measured, libraries 2.000 GB"
            " planned, 1.500 GB measured");
}

}  // namespace
}  // namespace trireme::machine
