"""The load client: any server of the REST shape can be measured with it, ours and the ceiling alike."""
