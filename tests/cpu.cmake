flashlatent_test(cpu_roof_test LIBS flashlatent_runtime)
flashlatent_test(cpu_dense_test LIBS flashlatent_runtime hwy::hwy)
