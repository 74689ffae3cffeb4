// Exports random numbers.
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/writer.h"

namespace espalier::onnx_export {
namespace {

void RandomNumbersLike(Writer& w) {
  const bool normal = w.attributes().String("distribution") == "normal";
  w.Finish(normal ? "RandomNormalLike" : "RandomUniformLike", {w.In(0)},
           {{"dtype", int64_t{onnx_import::ToOnnx(DType::kF32)}},
            {normal ? "mean" : "low", w.attributes().Float("a")},
            {normal ? "scale" : "high", w.attributes().Float("b")}});
}

}  // namespace

void RegisterRandomWriters(WriterTable& table) { table["random_like"] = RandomNumbersLike; }

}  // namespace espalier::onnx_export
