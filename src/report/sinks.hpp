// The sinks that there are, a function and a file each; the table is in metrics_sink.cpp.
#pragma once

#include <memory>

#include "trireme/report/metrics_sink.hpp"

namespace trireme::report {

std::unique_ptr<MetricsSink> make_csv_sink(const SinkFacts& facts);
std::unique_ptr<MetricsSink> make_mlflow_sink(const SinkFacts& facts);
std::unique_ptr<MetricsSink> make_tensorboard_sink(const SinkFacts& facts);
std::unique_ptr<MetricsSink> make_wandb_sink(const SinkFacts& facts);

// The name of a metric with its groups as folders: "seconds.train" -> "seconds/train".
std::string path_name(const std::string& metric);

}  // namespace trireme::report
