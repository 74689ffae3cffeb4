#include "planner/testing/zoo/zoo.h"

#include "planner/testing/zoo/models.h"

namespace espalier {
namespace {

using zoo::GptSizes;
using zoo::MoeSizes;

// GPT-3's paper prints 5140 for a width of 40 heads of 128. The 50257 tokens are padded to a
// multiple of 128, as in Megatron, so that they split.
constexpr GptSizes kGpt13b{
    .layers = 40, .hidden = 5120, .heads = 40, .sequence = 2048, .vocabulary = 50304};
constexpr GptSizes kGpt175b{
    .layers = 96, .hidden = 12288, .heads = 96, .sequence = 2048, .vocabulary = 50304};
constexpr MoeSizes kMoe{
    .body = {.layers = 16, .hidden = 1536, .heads = 16, .sequence = 1024, .vocabulary = 32000},
    .experts = 32};

}  // namespace

const std::vector<ZooModel>& Zoo() {
  static const auto* models = new std::vector<ZooModel>{
      {.name = "alexnet",
       .source = "Krizhevsky, One weird trick for parallelizing convolutional neural networks, "
                 "2014, as in torchvision",
       .published_parameters = 61'100'840,
       .parameter_tolerance = 0.001,
       .batch_per_device = 256,
       .build = zoo::BuildAlexNet},
      {.name = "resnet50",
       .source = "He et al., Deep residual learning for image recognition, 2016; stride on the 3x3",
       .published_parameters = 25'557'032,
       .parameter_tolerance = 0.001,
       .batch_per_device = 64,
       .build = [](const OpRegistry& r) { return zoo::BuildResNet50(r); }},
      {.name = "inception_v3",
       .source = "Szegedy et al., Rethinking the Inception architecture for computer vision, 2016, "
                 "without the auxiliary head",
       .published_parameters = 23'834'568,
       .parameter_tolerance = 0.001,
       .batch_per_device = 64,
       .build = zoo::BuildInceptionV3},
      // No paper prints a count for folded tables: 7,110,446 rows of 64, and 762,177 in the MLPs.
      {.name = "dlrm",
       .source =
           "Naumov et al., Deep learning recommendation model, 2019, as for Criteo's Terabyte "
           "set (bottom 13-512-256-64, top 512-512-256-1), tables folded at 1e6 rows",
       .published_parameters = 455'830'721,
       .parameter_tolerance = 0.001,
       .batch_per_device = 2048,
       .build = zoo::BuildDlrm},
      {.name = "bert_large",
       .source = "Devlin et al., BERT, 2019, with the masked-language-model head, 512 tokens",
       .published_parameters = 336'000'000,
       .parameter_tolerance = 0.01,
       .batch_per_device = 8,
       .build = zoo::BuildBertLarge},
      {.name = "gpt3_13b",
       .source = "Brown et al., Language models are few-shot learners, 2020, with 5120 for the "
                 "5140 of table 2.1 and an output matrix of its own",
       .published_parameters = 13'000'000'000,
       .parameter_tolerance = 0.01,
       .batch_per_device = 1,
       .build = [](const OpRegistry& r) { return zoo::BuildGpt(r, "gpt3_13b", kGpt13b); }},
      {.name = "gpt3_175b",
       .source = "Brown et al., Language models are few-shot learners, 2020, with an output matrix "
                 "of its own",
       .published_parameters = 174'600'000'000,
       .parameter_tolerance = 0.01,
       .batch_per_device = 1,
       .build = [](const OpRegistry& r) { return zoo::BuildGpt(r, "gpt3_175b", kGpt175b); }},
      {.name = "moe",
       .source = "Lepikhin et al., GShard, 2021, as a decoder of the size called 10B by Zheng et "
                 "al., Alpa, 2022: 16 layers, every second one with 32 experts",
       .published_parameters = 10'200'000'000,
       .parameter_tolerance = 0.01,
       .batch_per_device = 8,
       .build = [](const OpRegistry& r) { return zoo::BuildMoe(r, "moe", kMoe); }},
      {.name = "unet3d",
       .source = "Cicek et al., 3D U-Net, 2016, with padded convolutions on 128^3 voxels",
       .published_parameters = 19'069'955,
       .parameter_tolerance = 0.001,
       .batch_per_device = 2,
       .build = [](const OpRegistry& r) { return zoo::BuildUnet3d(r); }},
  };
  return *models;
}

const ZooModel* FindZooModel(absl::string_view name) {
  for (const ZooModel& model : Zoo()) {
    if (model.name == name) return &model;
  }
  return nullptr;
}

}  // namespace espalier
